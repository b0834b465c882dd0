package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	cl "github.com/skein-rl/skein/cluster"
)

// options of one episode.
type options struct {
	Binary    string // the one that is tortured
	Base      string // folder for everything
	Nodes     int
	Length    time.Duration // of the faults
	Seed      uint64
	Disk      bool // nodes live on package disk's file system
	Strict    bool // and it keeps POSIX to the letter
	Kinds     []Kind
	Heartbeat time.Duration
	Load      load
	Log       func(format string, args ...any)
}

// cluster is the system under test.
type cluster struct {
	opt   options
	base  string
	net   *Network
	began time.Time
	token string
	admin *cl.Client

	mu    sync.Mutex
	nodes []*node // by place
	names int
	notes []string
	wg    sync.WaitGroup
}

func (c *cluster) now() time.Duration { return time.Since(c.began) }

// note records an event of the harness.
func (c *cluster) note(format string, args ...any) {
	line := fmt.Sprintf("%9.3fs ", c.now().Seconds()) + fmt.Sprintf(format, args...)
	c.mu.Lock()
	c.notes = append(c.notes, line)
	c.mu.Unlock()
	if c.opt.Log != nil {
		c.opt.Log("%s", line)
	}
}

func (c *cluster) tokenFile() string { return filepath.Join(c.base, "token") }

func (c *cluster) list() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

func (c *cluster) at(place int) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[place]
}

// joinAddrs are the proxies a node finds the others by; none for the founder.
func (c *cluster) joinAddrs(place int) []string {
	if _, err := os.Stat(c.tokenFile()); err != nil {
		return nil
	}
	var out []string
	for _, n := range c.list() {
		if n.place != place {
			out = append(out, n.address)
		}
	}
	return out
}

func (c *cluster) addrs() (out []string) {
	for _, n := range c.list() {
		out = append(out, n.address)
	}
	return out
}

// add makes a node at the next place and starts it.
func (c *cluster) add() (*node, error) {
	c.mu.Lock()
	n := &node{c: c, place: len(c.nodes), change: make(chan struct{}), down: 1}
	c.mu.Unlock()
	var err error
	if n.listen, err = freeAddr(); err != nil {
		return nil, err
	}
	if n.address, err = c.net.Proxy(n.place, n.listen); err != nil {
		return nil, err
	}
	if err := errors.Join(n.setClock(0), n.prepare(c.newID())); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	c.wg.Go(n.supervise)
	n.start()
	return n, nil
}

func (c *cluster) newID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names++
	return fmt.Sprintf("n%d", c.names-1)
}

// open starts the cluster and waits until all nodes vote.
func open(ctx context.Context, opt options) (c *cluster, err error) {
	c = &cluster{opt: opt, base: opt.Base, net: NewNetwork(), began: time.Now()}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	first, err := c.add()
	if err != nil {
		return nil, err
	}
	if err := c.readToken(ctx, first); err != nil {
		return nil, err
	}
	for range opt.Nodes - 1 {
		if _, err := c.add(); err != nil {
			return nil, err
		}
	}
	if c.admin, err = c.dial(ctx, "admin", cl.RoleClient); err != nil {
		return nil, err
	}
	return c, c.healthy(ctx, opt.Nodes)
}

func (c *cluster) readToken(ctx context.Context, n *node) error {
	from := filepath.Join(n.dir, "replay", "token")
	for {
		b, err := os.ReadFile(from)
		if err == nil && len(b) > 0 {
			c.token = strings.TrimSpace(string(b))
			return os.WriteFile(c.tokenFile(), b, 0o600)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the first node wrote no token: %w\n%s", ctx.Err(), tail(n.logFile(), 20))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// dial makes a client with a certificate of its own.
func (c *cluster) dial(ctx context.Context, id, role string) (*cl.Client, error) {
	tok, err := cl.ParseToken(c.token)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.base, "client", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ident, err := cl.Join(ctx, cl.JoinConfig{Addrs: c.addrs(), Token: tok, ID: id, Role: role, Dir: dir})
	if err != nil {
		return nil, err
	}
	return cl.Dial(ctx, c.addrs(), ident, dir)
}

// status asks the leader, or whoever answers.
func (c *cluster) status(limit time.Duration) (cl.ClusterStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return c.admin.ClusterStatus(ctx)
}

// leader is its place, or -1.
func (c *cluster) leader() int {
	st, err := c.status(1500 * time.Millisecond)
	if err != nil {
		return -1
	}
	for _, n := range c.list() {
		if n.id == st.Leader {
			return n.place
		}
	}
	return -1
}

// healthy waits until the group has a leader and so many voters (5 at most),
// all alive, with every payload, and applied alike.
func (c *cluster) healthy(ctx context.Context, nodes int) error {
	var why string
	for {
		if why = c.ill(nodes); why == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not healthy in time: %s", why)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *cluster) ill(nodes int) string {
	st, err := c.status(3 * time.Second)
	if err != nil {
		return err.Error()
	}
	if st.Leader == "" {
		return "no leader"
	}
	voters, lead := 0, uint64(0)
	for _, n := range st.Nodes {
		if n.Leader {
			lead = n.Applied
		}
	}
	for _, n := range st.Nodes {
		if n.Role != cl.RoleReplay {
			continue
		}
		switch {
		case !n.Alive:
			return fmt.Sprintf("node %s is not alive", n.ID)
		case n.Missing > 0:
			return fmt.Sprintf("node %s lacks %d payloads", n.ID, n.Missing)
		case n.Applied+50 < lead:
			return fmt.Sprintf("node %s has applied %d of %d", n.ID, n.Applied, lead)
		}
		if n.Voter {
			voters++
		}
	}
	if want := min(nodes, 5); voters != want {
		return fmt.Sprintf("%d of %d voters", voters, want)
	}
	return ""
}

// close ends every process and takes the disks away.
func (c *cluster) close() {
	if c.admin != nil {
		_ = c.admin.Close()
	}
	for _, n := range c.list() {
		n.leave()
	}
	c.wg.Wait()
	c.net.Close()
	for _, n := range c.list() {
		if err := n.discard(); err != nil {
			c.note("take node %s away: %v", n.id, err)
		}
	}
}

// tail is the end of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
