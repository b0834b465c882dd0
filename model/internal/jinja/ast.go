package jinja

// Expressions.
type (
	constant struct{ value any }
	name     struct{ name string }
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct{ keys, values []expr }
	attr     struct {
		of   expr
		name string
	}
	item  struct{ of, key expr }
	slice struct{ of, from, to, step expr } // nil = left out
	call  struct {
		fn         expr
		args       arguments
		name, line string
	}
	filter struct {
		of   expr // nil = the body of a block
		name string
		args arguments
	}
	test struct {
		of   expr
		name string
		args arguments
		not  bool
	}
	unary struct {
		op string
		of expr
	}
	binary struct {
		op          string
		left, right expr
	}
	concat  struct{ parts []expr }
	compare struct {
		first expr
		ops   []string
		rest  []expr
	}
	ternary struct{ cond, yes, no expr } // no may be nil
)

type arguments struct {
	args         []expr
	kw           []namedExpr
	star, double expr // *args and **kwargs
}

type namedExpr struct {
	name  string
	value expr
}

// expr is one of the above.
type expr any

// Statements.
type (
	textNode   struct{ text string }
	outputNode struct{ value expr }
	ifNode     struct {
		cond      expr
		body, els []node
	}
	forNode struct {
		target    expr
		iter      expr
		cond      expr // nil = all
		body, els []node
		recursive bool
	}
	setNode struct {
		target expr
		value  expr // nil = the body, through filter
		body   []node
		filter expr // filters whose innermost of is nil; may be nil
	}
	macroNode struct {
		name     string
		params   []string
		defaults []expr // of the last params
		body     []node
		catch    catchAll
	}
	callNode struct {
		macro macroNode // caller
		call  expr
	}
	filterNode struct {
		filter expr
		body   []node
	}
	withNode struct {
		targets, values []expr
		body            []node
	}
	scopeNode  struct{ body []node } // generation
	breakNode  struct{}
	continNode struct{}
)

// catchAll says which of these a macro's body mentions.
type catchAll struct{ varargs, kwargs, caller bool }

// node is one of the above, with its line.
type node struct {
	line int
	stmt any
}
