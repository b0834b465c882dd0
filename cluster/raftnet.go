package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// raftStream gives raft its connections: dialled with the node's certificate,
// accepted from the mux. It remembers every open one, because raft's transport
// forgets them when it is closed and its readers would outlive the node.
type raftStream struct {
	in   net.Listener
	addr advertised
	id   *Identity

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup // accepted connections, each with a reader of raft's
}

func newRaftStream(n *Node) *raftStream {
	return &raftStream{in: n.mux.raft, addr: advertised(n.addr), id: n.ident,
		conns: make(map[net.Conn]struct{})}
}

// Accept implements net.Listener.
func (s *raftStream) Accept() (net.Conn, error) {
	c, err := s.in.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c, true)
}

// Addr implements net.Listener: what others dial, which raft tells them.
func (s *raftStream) Addr() net.Addr { return s.addr }

// Dial implements raft.StreamLayer. The target is "id@host:port" from
// addressProvider; the node there must prove the id, because raft would count
// the vote of whoever answers as the vote of the one it meant.
func (s *raftStream) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, ok := strings.Cut(string(target), "@")
	if !ok && target != raft.ServerAddress(s.addr) {
		return nil, fmt.Errorf("cluster: no address known of raft peer %s", target)
	}
	if !ok { // itself, for the first election
		id, addr = s.id.ID, string(s.addr)
	}
	conf, _ := s.id.clientTLS(alpnRaft, id)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	d := tls.Dialer{Config: conf}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cluster: dial raft peer %s: %w", target, err)
	}
	return s.track(c, false)
}

func (s *raftStream) track(c net.Conn, accepted bool) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	s.conns[c] = struct{}{}
	if accepted {
		s.wg.Add(1)
	}
	return &raftConn{Conn: c, s: s, accepted: accepted}, nil
}

// Close ends every connection and refuses new ones.
func (s *raftStream) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	return nil
}

// wait returns when the readers of accepted connections are gone.
func (s *raftStream) wait() { s.wg.Wait() }

// advertised is a net.Addr of the node's choosing.
type advertised string

// Network implements net.Addr.
func (advertised) Network() string { return "tcp" }

// String implements net.Addr.
func (a advertised) String() string { return string(a) }

// addressProvider gives raft the addresses of members; raft's own configuration
// holds ids in their place.
type addressProvider Node

// ServerAddr implements raft.ServerAddressProvider.
func (p *addressProvider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if string(id) == p.id {
		return raft.ServerAddress(p.addr), nil
	}
	addr, ok := p.book.addr(string(id))
	if !ok {
		return "", fmt.Errorf("cluster: no address known of node %s", id)
	}
	return raft.ServerAddress(string(id) + "@" + addr), nil
}

type raftConn struct {
	net.Conn
	s        *raftStream
	accepted bool
	once     sync.Once
}

// Close implements net.Conn.
func (c *raftConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.s.mu.Lock()
		delete(c.s.conns, c.Conn)
		c.s.mu.Unlock()
		if c.accepted {
			c.s.wg.Done()
		}
	})
	return err
}
