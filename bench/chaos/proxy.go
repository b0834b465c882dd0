package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The network between nodes, and from clients to nodes: every node advertises
// the address of a proxy of its own, so that all connections to it come through
// there. The proxy finds out which process dialled (by /proc) and applies the
// rule of that link, for each direction by itself.

// outside is the place of everybody who is no node.
const outside = -1

// Rule of one direction of a link.
type Rule struct {
	Cut   bool          // nothing passes; what was sent passes when it is lifted
	Delay time.Duration // of everything
}

// Rules are those of several directions: from, to.
type Rules map[[2]int]Rule

// Network holds the proxies and the rules.
type Network struct {
	mu    sync.Mutex
	cond  *sync.Cond
	rules map[int]Rules // of the faults that are on, by their number
	next  int
	pids  map[int]int // process to place
	conns map[*conn]bool
	lns   []net.Listener
	wg    sync.WaitGroup
	done  bool
}

type conn struct {
	from, to int
	a, b     net.Conn // of the dialler, of the node
}

func (c *conn) close() { _, _ = c.a.Close(), c.b.Close() }

// NewNetwork has no rules.
func NewNetwork() *Network {
	n := &Network{rules: make(map[int]Rules), pids: make(map[int]int), conns: make(map[*conn]bool)}
	n.cond = sync.NewCond(&n.mu)
	return n
}

// Proxy starts the proxy of a node that will listen on target.
func (n *Network) Proxy(place int, target string) (addr string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	n.mu.Lock()
	n.lns = append(n.lns, ln)
	n.mu.Unlock()
	n.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n.wg.Go(func() { n.carry(c, place, target) })
		}
	})
	return ln.Addr().String(), nil
}

// Process says which node a process is; 0 forgets the node's.
func (n *Network) Process(place, pid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p, at := range n.pids {
		if at == place {
			delete(n.pids, p)
		}
	}
	if pid != 0 {
		n.pids[pid] = place
	}
}

// Impose adds rules to those that are there until lift is called. With reset,
// connections that they held up are broken then instead of going on.
func (n *Network) Impose(r Rules) (lift func(reset bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	at := n.next
	n.rules[at] = r
	n.cond.Broadcast()
	return func(reset bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for c := range n.conns {
			if reset && (r[[2]int{c.from, c.to}].Cut || r[[2]int{c.to, c.from}].Cut) {
				c.close()
			}
		}
		delete(n.rules, at)
		n.cond.Broadcast()
	}
}

// rule adds up the rules of a direction.
func (n *Network) rule(from, to int) (out Rule) {
	for _, r := range n.rules {
		x := r[[2]int{from, to}]
		out.Cut = out.Cut || x.Cut
		out.Delay += x.Delay
	}
	return out
}

// Close ends everything.
func (n *Network) Close() {
	n.mu.Lock()
	n.done = true
	for _, l := range n.lns {
		_ = l.Close()
	}
	for c := range n.conns {
		c.close()
	}
	n.cond.Broadcast()
	n.mu.Unlock()
	n.wg.Wait()
}

// pass waits while the direction is cut and returns its delay; false = closed.
func (n *Network) pass(from, to int, gone func() bool) (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !n.done && !gone() {
		r := n.rule(from, to)
		if !r.Cut {
			return r.Delay, true
		}
		n.cond.Wait()
	}
	return 0, false
}

func (n *Network) carry(a net.Conn, place int, target string) {
	from := n.who(a.RemoteAddr().(*net.TCPAddr).Port)
	// A cut link answers nothing, not even to a dial.
	if _, ok := n.pass(from, place, func() bool { return false }); !ok {
		_ = a.Close()
		return
	}
	b, err := net.DialTimeout("tcp", target, 2*time.Second)
	if err != nil {
		_ = a.Close() // nobody listens: refused
		return
	}
	c := &conn{from, place, a, b}
	n.mu.Lock()
	n.conns[c] = true
	if n.done {
		c.close()
	}
	n.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	over := false
	gone := func() bool { mu.Lock(); defer mu.Unlock(); return over }
	end := func() {
		mu.Lock()
		over = true
		mu.Unlock()
		c.close()
		n.mu.Lock()
		n.cond.Broadcast()
		n.mu.Unlock()
	}
	wg.Go(func() { defer end(); n.pump(b, a, from, place, gone) })
	wg.Go(func() { defer end(); n.pump(a, b, place, from, gone) })
	wg.Wait()
	n.mu.Lock()
	delete(n.conns, c)
	n.mu.Unlock()
}

func (n *Network) pump(dst io.Writer, src io.Reader, from, to int, gone func() bool) {
	buf := make([]byte, 64<<10)
	for {
		k, err := src.Read(buf)
		if k > 0 {
			d, ok := n.pass(from, to, gone)
			if !ok {
				return
			}
			if d > 0 {
				time.Sleep(d)
			}
			if _, err := dst.Write(buf[:k]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// who finds the place of the process whose socket has that local port.
func (n *Network) who(port int) int {
	inode := socketOf(port)
	if inode == "" {
		return outside
	}
	n.mu.Lock()
	pids := make(map[int]int, len(n.pids))
	for p, at := range n.pids {
		pids[p] = at
	}
	n.mu.Unlock()
	want := "socket:[" + inode + "]"
	for pid, place := range pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == want {
				return place
			}
		}
	}
	return outside
}

// socketOf is the inode of the TCP socket at 127.0.0.1:port, "" when unknown.
func socketOf(port int) string {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) < 10 {
			continue
		}
		_, hex, ok := strings.Cut(w[1], ":")
		p, err := strconv.ParseUint(hex, 16, 16)
		if ok && err == nil && int(p) == port && w[9] != "0" {
			return w[9]
		}
	}
	return ""
}
