package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/replay"
)

// process is a replay node of its own.
type process struct {
	dir, addr string
	cmd       *exec.Cmd
	in        io.WriteCloser
	// opened and ready are the seconds until the storage was open and until
	// the group had a leader.
	opened, ready float64
}

func (s *session) startNode(dir, join, token string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"-node", dir, "-join", join, "-token", token}
	if s.profile != "" {
		args = append(args, "-cpuprofile", filepath.Join(s.profile, filepath.Base(dir)+".prof"))
	}
	p := &process{dir: dir, cmd: exec.Command(self, args...)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	r := bufio.NewReader(out)
	addr, err := r.ReadString('\n')
	if err == nil {
		var times string
		times, err = r.ReadString('\n')
		if _, serr := fmt.Sscan(times, &p.opened, &p.ready); err == nil {
			err = serr
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node %s did not start: %w", dir, err), p.kill())
	}
	p.addr = strings.TrimSpace(addr)
	return p, nil
}

// stop ends the node in order.
func (p *process) stop() error {
	_ = p.in.Close()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-done
		return fmt.Errorf("node %s did not stop within 30 s", p.dir)
	}
}

// kill ends it as a crash does.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	return err
}

// proc reads a number of /proc/PID/file.
func (p *process) proc(file, field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			return strconv.ParseFloat(strings.Fields(value)[0], 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", p.cmd.Process.Pid, file, field)
}

// group is a cluster of real processes and a client of it.
type group struct {
	dir   string
	nodes []*process
	cl    *cluster.Client
}

const runName = "bench"

// startGroup starts n nodes in new folders and creates the run.
func (s *session) startGroup(ctx context.Context, n int) (g *group, err error) {
	dir, err := os.MkdirTemp(s.dir, "group-")
	if err != nil {
		return nil, err
	}
	g = &group{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	first := filepath.Join(dir, "n0")
	token := filepath.Join(first, "token")
	for i := range n {
		join := ""
		if i > 0 {
			join = g.nodes[0].addr
		}
		p, err := s.startNode(filepath.Join(dir, fmt.Sprint("n", i)), join, token)
		if err != nil {
			return g, err
		}
		g.nodes = append(g.nodes, p)
	}
	if err := g.connect(ctx); err != nil {
		return g, err
	}
	for ctx, cancel := context.WithTimeout(ctx, time.Minute); ; {
		st, err := g.cl.ClusterStatus(ctx)
		if err != nil {
			cancel()
			return g, err
		}
		voters := 0
		for _, x := range st.Nodes {
			if x.Role == cluster.RoleReplay && x.Voter {
				voters++
			}
		}
		if voters == n {
			cancel()
			break
		}
		select {
		case <-ctx.Done():
			cancel()
			return g, fmt.Errorf("%d of %d nodes vote after a minute", voters, n)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return g, g.cl.CreateRun(ctx, replay.RunSpec{
		Run: runName, GroupSize: 8, GroupsPerStep: 64, MaxStaleness: 4096, TicketTTL: time.Hour, MaxAttempts: 2, BaseDigest: "base",
	})
}

// connect makes the client.
func (g *group) connect(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(g.dir, "n0", "token"))
	if err != nil {
		return err
	}
	token, err := cluster.ParseToken(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	g.cl, err = cluster.Connect(ctx, cluster.JoinConfig{
		Addrs: []string{g.nodes[0].addr}, Token: token, ID: "bench", Role: cluster.RoleWorker, Dir: filepath.Join(g.dir, "client"),
	})
	return err
}

// close stops everything and deletes the folders.
func (g *group) close() error {
	var errs []error
	if g.cl != nil {
		errs = append(errs, g.cl.Close())
	}
	for i := len(g.nodes) - 1; i >= 0; i-- {
		errs = append(errs, g.nodes[i].stop())
	}
	return errors.Join(append(errs, os.RemoveAll(g.dir))...)
}

// sum adds a number of /proc over the nodes.
func (g *group) sum(file, field string) (total float64, err error) {
	for _, p := range g.nodes {
		v, err := p.proc(file, field)
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
}

// cpu is the processor time, in seconds, of the nodes and of this process, the
// producers.
func (g *group) cpu() (total float64) {
	pids := []string{"self"}
	for _, p := range g.nodes {
		pids = append(pids, strconv.Itoa(p.cmd.Process.Pid))
	}
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return 0
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		for i, f := range strings.Fields(rest) {
			if i == 11 || i == 12 { // utime, stime in ticks of 10 ms
				v, _ := strconv.ParseFloat(f, 64)
				total += v / 100
			}
		}
	}
	return total
}
