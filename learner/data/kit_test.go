package data

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// toyChat is one token a byte; 1 begins, 2 ends, 3 opens a turn.
type toyChat struct{}

func (toyChat) Text(s string, first bool) []int32 {
	var out []int32
	if first {
		out = append(out, 1)
	}
	for _, b := range []byte(s) {
		out = append(out, int32(b))
	}
	return out
}

func (toyChat) End() int32 { return 2 }

func (c toyChat) Opening(_ []Tool, ms []Message) ([]int32, error) {
	ids := []int32{1}
	for _, m := range ms {
		ids = append(append(append(ids, 3), c.Text(m.Role+m.Content, false)...), 2)
	}
	return append(ids, 3), nil
}

func (c toyChat) Conversation(tools []Tool, ms []Message) (ids []int32, turns []Turn, err error) {
	for i, m := range ms {
		if m.Content == "rewritten" {
			return nil, nil, errors.New("the template rewrites history")
		}
		if m.Role != "assistant" {
			continue
		}
		if ids == nil {
			ids, _ = c.Opening(tools, ms[:i])
		} else {
			ids = append(ids, 3)
		}
		start := len(ids)
		text := m.Content
		for _, call := range m.Calls {
			text += call.Name + string(call.Arguments)
		}
		ids = append(append(ids, c.Text(text, false)...), 2)
		turns = append(turns, Turn{start, len(ids), len(m.Calls) > 0})
		for j := i + 1; j < len(ms) && ms[j].Role != "assistant"; j++ {
			ids = append(append(append(ids, 3), c.Text(ms[j].Content, false)...), 2)
		}
	}
	return ids, turns, nil
}

func options(want Want) Options {
	return Options{Want: want, BadRows: BadFail, Overlong: LongDrop, Encoding: Encoding{CallWeight: 2, StepSeparator: "\n"}, Order: DefaultOrder()}
}

func file(t testing.TB, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	return path
}

func load(t testing.TB, opt Options, paths ...string) (*Set, Report, error) {
	t.Helper()
	var sources []Source
	for _, p := range paths {
		sources = append(sources, Source{Path: p})
	}
	return Load(context.Background(), sources, toyChat{}, opt)
}

func text(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch id {
		case 1:
			b.WriteByte('^')
		case 2:
			b.WriteByte('$')
		case 3:
			b.WriteByte('|')
		default:
			b.WriteByte(byte(id))
		}
	}
	return b.String()
}
