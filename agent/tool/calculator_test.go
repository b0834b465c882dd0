package tool

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Values are Python's for the same expression.
func TestEvaluate(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"3*17+2*45", "141"},
		{" ( 1 + 2 ) * 3 ", "9"},
		{"7/2", "3.5"},
		{"1/3", "0.333333333333"},
		{"0.1+0.2", "0.3"},
		{"-2**2", "-4"},
		{"(-2)**2", "4"},
		{"2**3**2", "512"},
		{"2**-1", "0.5"},
		{"-7%3", "2"},
		{"7%-3", "-2"},
		{"5.5%2", "1.5"},
		{"2-3-4", "-5"},
		{"100/10/2", "5"},
		{"--3", "3"},
		{"2*-3", "-6"},
		{"1e3+.5", "1000.5"},
		{"0*-1", "0"},
		{"12345678901234", "12345678901234"},
	} {
		v, err := Evaluate(c.expr)
		require.NoError(t, err, c.expr)
		require.Equal(t, c.want, FormatNumber(v), c.expr)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"", "unexpected end"},
		{"1+", "unexpected end"},
		{"(1", "unexpected end"},
		{"1)", `unexpected ')' at 2`},
		{"2^3", "a power is **"},
		{"1,000", `unexpected ',' at 2`},
		{"1/0", "division by zero at 2"},
		{"1%0", "division by zero"},
		{"0**-1", "division by zero"},
		{"9**9**9", "not a finite number"},
		{"(-1)**0.5", "not a finite number"},
		{"1e999", "out of range"},
		{"1e", "unexpected end"},
		{"x", `unexpected 'x' at 1`},
		{"3×4", `unexpected '×'`},
		{strings.Repeat("1+", 400) + "1", "limit is 512"},
		{strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100), "deeper"},
		{strings.Repeat("2**", 100) + "1", "deeper"},
	} {
		_, err := Evaluate(c.expr)
		require.ErrorContains(t, err, c.want, c.expr)
	}
}

// An expression tree written out evaluates to what the tree does.
func TestEvaluateMatchesTheTree(t *testing.T) {
	var draw func(t *rapid.T, depth int) (string, float64)
	draw = func(t *rapid.T, depth int) (string, float64) {
		if depth == 0 || rapid.IntRange(0, 3).Draw(t, "leaf") == 0 {
			n := rapid.IntRange(0, 99).Draw(t, "n")
			return fmt.Sprint(n), float64(n)
		}
		a, x := draw(t, depth-1)
		b, y := draw(t, depth-1)
		switch rapid.SampledFrom([]string{"+", "-", "*"}).Draw(t, "op") {
		case "+":
			return "(" + a + "+" + b + ")", x + y
		case "-":
			return "(" + a + " - " + b + ")", x - y
		default:
			return "(" + a + "*" + b + ")", x * y
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, want := draw(t, 4)
		got, err := Evaluate(s)
		if err != nil || math.Abs(got-want) > 1e-9*math.Abs(want) {
			t.Fatalf("%s = %v, %v; want %v", s, got, err, want)
		}
	})
}

func FuzzEvaluate(f *testing.F) {
	for _, s := range []string{"3*17+2*45", "2**3**2", "((1))", "1e5%-3", "--1", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := Evaluate(s)
		if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
			t.Fatalf("%q = %v", s, v)
		}
		if err == nil && strings.ContainsAny(FormatNumber(v), "eE") {
			t.Fatalf("%q formats as %s", s, FormatNumber(v))
		}
	})
}
