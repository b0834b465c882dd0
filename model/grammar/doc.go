// Package grammar constrains what a model may write: a JSON Schema, a grammar
// in EBNF (GBNF's form), a regular expression, a list of choices, or the calls
// of given tools.
//
// Each of these compiles to a [Grammar]: a pushdown automaton over bytes, whose
// states call rules and count repetitions. A [Program] joins it with a
// [Vocabulary], the tokens as a trie of their bytes, and a [Matcher] is one
// sequence being written: it implements model.Constraint. Which tokens may come
// next depends on the top of the automaton's stack only, save for the few that
// finish what the top is about; so masks are computed once for each top and
// shared by all matchers of a program (the idea of XGrammar, Dong et al. 2024,
// arXiv:2411.15100, section 3).
//
// A grammar that could never end, that is left recursive, or that is over the
// limits (states, nesting, bytes) is refused when it is compiled. A Program may
// be used by several goroutines, a Matcher by one at a time.
package grammar
