package bench

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgram(t *testing.T) {
	python, err := exec.LookPath("python3")
	require.NoError(t, err, "README asks for Python's pip")
	p, err := StartProgram(python, `
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    if q["do"] == "hang":
        sys.stdin.read()
    print(json.dumps({"error": "no such thing"} if q["do"] == "fail" else {"twice": 2 * q["n"], "arg": sys.argv[1]}), flush=True)
`, []string{"x"}, nil, filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer p.Close()
	type question struct {
		Do string `json:"do"`
		N  int    `json:"n"`
	}
	var a struct {
		Twice int
		Arg   string
	}
	require.NoError(t, p.Ask(t.Context(), question{"double", 21}, &a))
	require.Equal(t, 42, a.Twice)
	require.Equal(t, "x", a.Arg)
	require.ErrorContains(t, p.Ask(t.Context(), question{"fail", 0}, &a), "no such thing")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, p.Ask(ctx, question{"hang", 0}, &a), "it ends with its ctx")
}
