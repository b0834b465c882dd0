package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/skein-rl/skein/bench"
)

//go:embed peer.py
var peerPy string

// jobLimit bounds one process.
const jobLimit = 20 * time.Minute

// ours measures a job of ours in a fresh process.
func ours(ctx context.Context, o options, j job) (result, error) {
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	j.Model, j.Threads = o.model, o.threads
	r, err := process(ctx, j, []string{"PJRT_PLUGIN_LIBRARY_PATH=" + o.plugin}, func(file string) []string { return []string{self, "-worker", "@" + file} })
	r.Backend = strings.TrimSuffix(j.Backend, ":cpu") + " " + j.Dtype
	return r, err
}

// theirs measures a peer's.
func theirs(ctx context.Context, o options, j job) (result, error) {
	j.Threads = o.threads
	return process(ctx, j, nil, func(file string) []string {
		return []string{o.python, "-c", peerPy, file, o.hf}
	})
}

func process(ctx context.Context, j job, env []string, args func(file string) []string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, jobLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "skein-bench-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "job.json")
	if err := os.WriteFile(file, []byte(mustJSON(j)), 0o600); err != nil {
		return result{}, err
	}
	a := args(file)
	cmd := exec.CommandContext(ctx, a[0], a[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = dir
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		text := errOut.Bytes()
		return result{}, fmt.Errorf("%s %s %s: %w: %s", j.Kind, j.Backend, j.Dtype, err, text[max(0, len(text)-1500):])
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var r result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return result{}, fmt.Errorf("%s %s: result %q: %w", j.Kind, j.Backend, lines[len(lines)-1], err)
	}
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.RSS = float64(u.Maxrss) / 1024
	}
	return r, nil
}

// duel measures every form of ours and of the peer in turn, runs times, and keeps
// for each the best time and the least memory.
func duel(ctx context.Context, o options, forms []job, peer job) (mine []result, other result, err error) {
	mine = make([]result, len(forms))
	for i := range o.runs {
		for k, j := range forms {
			r, err := ours(ctx, o, j)
			if err != nil {
				return nil, other, err
			}
			mine[k] = better(mine[k], r)
			say("run %d %s: ours %s %.2f s, %.2f CPU-s, %.0f MB, first %.1f s; load %.1f", i+1, j.Kind, r.Backend, r.Wall, r.CPU, r.RSS, r.First, bench.LoadAverage())
		}
		r, err := theirs(ctx, o, peer)
		if err != nil {
			return nil, other, err
		}
		other = better(other, r)
		say("run %d %s: %s %.2f s, %.2f CPU-s, %.0f MB; load %.1f", i+1, peer.Kind, r.Version, r.Wall, r.CPU, r.RSS, bench.LoadAverage())
	}
	return mine, other, nil
}

// better is the run of less time, with the least of each figure.
func better(best, r result) result {
	if best.Wall == 0 {
		return r
	}
	rss, cpu, first := min(best.RSS, r.RSS), min(best.CPU, r.CPU), min(best.First, r.First)
	if r.Wall < best.Wall {
		best = r
	}
	best.RSS, best.CPU, best.First = rss, cpu, first
	return best
}

// least is the index of the form with the lowest figure.
func least(rs []result, figure func(result) float64) int {
	at := 0
	for i, r := range rs {
		if figure(r) < figure(rs[at]) {
			at = i
		}
	}
	return at
}

func wall(r result) float64 { return r.Wall }
func cpu(r result) float64  { return r.CPU }
func rss(r result) float64  { return r.RSS }

// add writes a time row and a memory row, each with the form of ours that is best
// in it and the other forms' figures in its detail.
func add(log *bench.Log, runs int, name, size, peer string, mine []result, other result, figure func(result) float64, unit string, detail map[string]any) error {
	for _, x := range []struct {
		name   string
		figure func(result) float64
		unit   string
	}{{name, figure, unit}, {name + "_rss", rss, "MB"}} {
		at := least(mine, x.figure)
		d := map[string]any{"backend": mine[at].Backend}
		for _, r := range mine {
			key := strings.ReplaceAll(r.Backend, " ", "_")
			d[key+"_s"], d[key+"_cpu_s"], d[key+"_first_s"], d[key+"_rss_mb"] = round(r.Wall), round(r.CPU), round(r.First), round(r.RSS)
		}
		d["peer_s"], d["peer_cpu_s"], d["peer_tokens"], d["tokens"] = round(other.Wall), round(other.CPU), other.Tokens, mine[at].Tokens
		for k, v := range mine[at].Detail {
			d[k] = round(v)
		}
		for k, v := range other.Detail {
			d["peer_"+k] = round(v)
		}
		for k, v := range detail {
			d[k] = v
		}
		err := log.Add(bench.Row{Bench: x.name, Size: size, Ours: x.figure(mine[at]), Peer: peer, PeerVersion: other.Version, Theirs: x.figure(other), Unit: x.unit, Runs: runs, Detail: d}, bench.Lower)
		if err != nil {
			return err
		}
	}
	return nil
}

// round keeps three digits after the point.
func round(x float64) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 3, 64), 64)
	if err != nil {
		return x
	}
	return v
}
