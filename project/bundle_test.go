package project

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unzip(t *testing.T, b []byte) map[string]string {
	r, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	out := map[string]string{}
	for _, f := range r.File {
		rc, err := f.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(rc)
		require.NoError(t, err)
		require.NoError(t, rc.Close())
		out[f.Name] = string(text)
	}
	return out
}

func TestBundleHasWhatABugNeedsAndNoSecrets(t *testing.T) {
	c := DefaultConfig()
	c.Run, c.Training.MaxSteps, c.Training.GroupsPerStep, c.Training.NumGenerations = "m", 2, 2, 2
	c.Training.MaxCompletionLength, c.Eval.Tasks = 16, 0
	dir := t.TempDir()
	_, err := RunLocal(t.Context(), c, LocalOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Progress: io.Discard})
	require.NoError(t, err)
	token := "skein1." + strings.Repeat("ab", 32) + ".THESECRETOFTHETOKEN"
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "logs"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "logs", "worker-0.log"), []byte(strings.Repeat("x", 2*bundleLog)+"\njoined with "+token+"\nlast words\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600))

	st, err := OpenStore(t.Context(), StoreOptions{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer st.Close()
	var zipped bytes.Buffer
	problems, err := WriteBundle(t.Context(), &zipped, BundleOptions{Dir: dir, Store: st, Note: "it hangs", Version: "v1"})
	require.NoError(t, err)
	require.Empty(t, problems)
	require.NotContains(t, zipped.String(), "THESECRETOFTHETOKEN")
	parts := unzip(t, zipped.Bytes())
	for _, name := range []string{"README.txt", "about.json", "doctor.json", "overview.json", "runs/m/config.yaml", "runs/m/steps.jsonl", "logs/logs/worker-0.log", "files.txt"} {
		require.Contains(t, parts, name)
	}
	for name, text := range parts {
		require.NotContains(t, text, "THESECRETOFTHETOKEN", name)
	}
	log := parts["logs/logs/worker-0.log"]
	require.True(t, strings.HasSuffix(log, "last words\n"))
	require.LessOrEqual(t, len(log), bundleLog)
	require.Equal(t, 2, strings.Count(parts["runs/m/steps.jsonl"], "\n"))
	var about struct {
		Note     string
		Replaced int
	}
	require.NoError(t, json.Unmarshal([]byte(parts["about.json"]), &about))
	require.Equal(t, "it hangs", about.Note)
	require.Positive(t, about.Replaced)
}

func TestBundleOfWhatCannotBeReached(t *testing.T) {
	var zipped bytes.Buffer
	problems, err := WriteBundle(t.Context(), &zipped, BundleOptions{Dir: t.TempDir(), Unreachable: errors.New("the nodes are down")})
	require.NoError(t, err)
	require.Equal(t, []string{"store: the nodes are down"}, problems)
	require.Contains(t, unzip(t, zipped.Bytes())["about.json"], "the nodes are down")
}
