package data

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Policies for rows that cannot be used.
const (
	BadFail = "fail" // refuse the data, listing the first of them
	BadSkip = "skip" // leave them out, counted and reported
)

// Policies for rows that are too long.
const (
	LongDrop     = "drop"     // leave them out, counted
	LongTruncate = "truncate" // cut the completion's end; a prompt is never cut
	LongFail     = "fail"     // treat them as bad rows
)

// Source is one file, or several that a pattern names, with its share of a mix.
type Source struct {
	// Path is a file or a pattern such as data/*.jsonl: .jsonl, .ndjson (also
	// with .gz or .zst) or .parquet.
	Path string `yaml:"path" json:"path"`
	// Weight is the source's share when sources are interleaved; 0 is 1.
	Weight float64 `yaml:"weight,omitempty" json:"weight,omitempty"`
}

// Options say how files become a set.
type Options struct {
	Want Want
	// Format forces one of Formats(); "" detects it in each file.
	Format string
	// Columns renames columns: the wanted name -> the file's.
	Columns map[string]string
	// BadRows is "fail" or "skip".
	BadRows string
	// MaxLength bounds prompt and completion together in tokens, MaxPrompt the
	// prompt; 0 = no bound. Overlong says what happens to longer rows; longer
	// prompts are never truncated.
	MaxLength, MaxPrompt int
	Overlong             string
	Encoding             Encoding
	Order                Order
	// Skipped sees every row left out, with its place and why; nil allowed.
	Skipped func(where string, why error)
}

// Report counts what loading did.
type Report struct {
	Files     int            `json:"files"`
	Read      int            `json:"rows_read"`
	Bad       int            `json:"rows_bad,omitempty"`
	TooLong   int            `json:"rows_too_long,omitempty"`
	Truncated int            `json:"rows_truncated,omitempty"`
	Formats   map[string]int `json:"formats"` // files by format
}

// BadRowsError lists rows that cannot be used.
type BadRowsError struct {
	Bad, Read int
	First     []error // each with its place
}

func (e *BadRowsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "data: %d of %d rows cannot be used (set data.bad_rows: skip to leave them out):", e.Bad, e.Read)
	for _, err := range e.First {
		fmt.Fprintf(&b, "\n  %v", err)
	}
	if n := e.Bad - len(e.First); n > 0 {
		fmt.Fprintf(&b, "\n  and %d more", n)
	}
	return b.String()
}

// Unwrap gives the rows' errors.
func (e *BadRowsError) Unwrap() []error { return e.First }

// ErrEmpty says that no row is left.
var ErrEmpty = errors.New("data: no rows to train")

// errTooLong is why a row is left out by length.
var errTooLong = errors.New("too long")

const listedRows = 10

// Load reads, checks and tokenises all rows of the sources. Files that cannot be
// read and columns that do not serve are errors whatever the policy on rows:
// *[ColumnsError], *[BadRowsError], [ErrEmpty]. ctx ends it between rows.
func Load(ctx context.Context, sources []Source, chat Chat, opt Options) (*Set, Report, error) {
	l := loader{opt: opt, enc: encoder{opt.Encoding, chat, opt.Want}, ctx: ctx, rep: Report{Formats: map[string]int{}}}
	if err := opt.validate(sources); err != nil {
		return nil, l.rep, err
	}
	var sizes []int
	var weights []float64
	for i, s := range sources {
		l.source = i
		before := len(l.rows)
		paths, err := expand(s.Path)
		if err != nil {
			return nil, l.rep, err
		}
		for _, p := range paths {
			if err := l.file(p); err != nil {
				return nil, l.rep, err
			}
		}
		n := len(l.rows) - before
		if n == 0 && l.bad.Bad == 0 {
			return nil, l.rep, fmt.Errorf("%w: %s has %d rows, %d of them too long for max_length %d or max_prompt_length %d", ErrEmpty, s.Path, l.rep.Read, l.rep.TooLong, opt.MaxLength, opt.MaxPrompt)
		}
		w := s.Weight
		if w == 0 {
			w = 1
		}
		sizes, weights = append(sizes, n), append(weights, w)
	}
	if l.bad.Bad > 0 && (opt.BadRows == BadFail || len(l.rows) == 0 || slices.Contains(sizes, 0)) {
		l.bad.Read = l.rep.Read
		return nil, l.rep, &l.bad
	}
	return newSet(nameOf(sources), l.rows, sizes, weights, opt.Order), l.rep, nil
}

func (o Options) validate(sources []Source) error {
	errs := o.Order.Validate()
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(sources) == 0 {
		bad("train: no files; name at least one")
	}
	for i, s := range sources {
		if s.Path == "" {
			bad("train[%d].path: empty; name a file", i)
		}
		if !(s.Weight >= 0) || s.Weight > 1e12 {
			bad("train[%d].weight: %v is not a finite number >= 0", i, s.Weight)
		}
	}
	if o.Format != "" && !slices.Contains(Formats(), o.Format) {
		bad("format: unknown %q; use one of %s, or leave it out to detect it", o.Format, strings.Join(Formats(), ", "))
	}
	known := slices.Clone(optional)
	for _, f := range formats {
		known = append(known, f.columns...)
	}
	for _, want := range slices.Sorted(maps.Keys(o.Columns)) {
		if !slices.Contains(known, want) && want != o.Order.Curriculum.Column {
			bad("columns: %q is no column that is read; the wanted names are %s", want, strings.Join(slices.Compact(slices.Sorted(slices.Values(known))), ", "))
		}
	}
	if o.BadRows != BadFail && o.BadRows != BadSkip {
		bad("bad_rows: unknown %q; use %q or %q", o.BadRows, BadFail, BadSkip)
	}
	if o.Overlong != LongDrop && o.Overlong != LongTruncate && o.Overlong != LongFail {
		bad("overlong: unknown %q; use %q, %q or %q", o.Overlong, LongDrop, LongTruncate, LongFail)
	}
	if o.MaxLength < 0 || o.MaxPrompt < 0 {
		bad("max_length, max_prompt_length: %d and %d; use numbers of tokens, 0 for no bound", o.MaxLength, o.MaxPrompt)
	}
	if w := o.Encoding.CallWeight; !(w >= 0) || w > 1e6 {
		bad("tool_call_weight: %v is not a finite number >= 0; use 2.0", w)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("data: %w", errors.Join(errs...))
}

// Validate reports every problem of the options and sources by field.
func (o Options) Validate(sources []Source) error { return o.validate(sources) }

// expand lists the files of a path or pattern, sorted.
func expand(path string) ([]string, error) {
	if _, err := os.Stat(path); err == nil || !strings.ContainsAny(path, "*?[") {
		return []string{path}, nil
	}
	found, err := filepath.Glob(path)
	if err != nil {
		return nil, fmt.Errorf("data: pattern %q: %w", path, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("data: pattern %q matches no file", path)
	}
	return found, nil
}

type loader struct {
	opt    Options
	enc    encoder
	ctx    context.Context
	source int
	rows   []Example
	rep    Report
	bad    BadRowsError
}

func (l *loader) file(path string) error {
	format := ""
	l.rep.Files++
	for row, err := range readFile(path) {
		if row.where == "" {
			return fmt.Errorf("data: %w", err)
		}
		if err := l.ctx.Err(); err != nil {
			return err
		}
		l.rep.Read++
		if err == nil {
			err = rename(row, l.opt.Columns)
		}
		if err == nil && format == "" {
			if format, err = detect(row, l.opt.Format, l.opt.Want); err != nil {
				return fmt.Errorf("data: %w", err)
			}
			l.rep.Formats[format]++
		}
		if err == nil {
			err = l.row(row, format)
		}
		if err != nil {
			l.refuse(row.where, err)
		}
	}
	return nil
}

func (l *loader) refuse(where string, why error) {
	if errors.Is(why, errTooLong) && l.opt.Overlong != LongFail {
		l.rep.TooLong++
	} else {
		l.rep.Bad++
		l.bad.Bad++
		if len(l.bad.First) < listedRows {
			l.bad.First = append(l.bad.First, fmt.Errorf("%s: %w", where, why))
		}
	}
	if l.opt.Skipped != nil {
		l.opt.Skipped(where, why)
	}
}

// rename applies the configured names of columns.
func rename(row raw, columns map[string]string) error {
	for want, have := range columns {
		v, ok := row.columns[have]
		if !ok {
			return fmt.Errorf("column %q is missing (data.columns takes it for %q); found: %s", have, want, list(slices.Sorted(maps.Keys(row.columns))))
		}
		row.columns[want] = v
	}
	return nil
}

func (l *loader) row(row raw, format string) error {
	r, err := parse(row, format, l.opt.Order.Curriculum.Column)
	if err != nil {
		return err
	}
	xs, err := l.enc.examples(r)
	if err != nil {
		return err
	}
	for i := range xs {
		xs[i].Source = l.source
		if err := l.fit(&xs[i]); err != nil {
			return err
		}
	}
	l.rows = append(l.rows, xs...)
	return nil
}

// fit bounds an example's length.
func (l *loader) fit(x *Example) error {
	if m := l.opt.MaxPrompt; m > 0 && len(x.Prompt) > m {
		return fmt.Errorf("%w: its prompt has %d tokens, max_prompt_length is %d", errTooLong, len(x.Prompt), m)
	}
	m := l.opt.MaxLength
	if m == 0 || x.Longest() <= m {
		return nil
	}
	if l.opt.Overlong != LongTruncate {
		return fmt.Errorf("%w: it has %d tokens, max_length is %d", errTooLong, x.Longest(), m)
	}
	for _, c := range []*Completion{&x.Chosen, &x.Rejected} {
		keep := m - len(x.Prompt)
		if len(c.Tokens) <= keep {
			continue
		}
		if keep > 0 {
			c.Tokens = c.Tokens[:keep]
			if c.Weights != nil {
				c.Weights = c.Weights[:keep]
			}
		}
		if keep <= 0 || c.Trained() == 0 {
			return fmt.Errorf("%w: max_length %d leaves none of its completion's trained tokens after a prompt of %d", errTooLong, m, len(x.Prompt))
		}
	}
	if x.Pair() && slices.Equal(x.Chosen.Tokens, x.Rejected.Tokens) {
		return fmt.Errorf("%w: within max_length %d chosen and rejected are equal", errTooLong, m)
	}
	l.rep.Truncated++
	return nil
}
