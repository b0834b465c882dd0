package cluster

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// Keepalive of every connection: a peer that vanished without a word is
// noticed within their sum.
const (
	pingEvery = 10 * time.Second
	pingWait  = 5 * time.Second
)

// link is a lazy connection to a node.
type link struct {
	*grpc.ClientConn
	addr string
	who  *verdict
}

// dial makes a link; want as in clientTLS.
func dial(id *Identity, addr, want string) (*link, error) {
	return dialRole(id, RoleReplay, addr, want, id.group)
}

// dialRole is dial for a server of any role, of the named raft group or ("") any.
func dialRole(id *Identity, role, addr, want, group string) (*link, error) {
	conf, who := id.tlsTo(role, alpnGRPC, want, group)
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(newWholeTLS(conf)), grpc.WithWriteBufferSize(writeBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("cluster: dial %s: %w", addr, err)
	}
	return &link{conn, addr, who}, nil
}

// fail turns a gRPC error of a call over the link into one of the door's. A
// server that is none of ours is a refusal, not a failure to be tried again.
func (l *link) fail(err error) error {
	if _, ok := status.FromError(err); err == nil || !ok {
		return err // ours already
	}
	err = fromStatus(err, l.addr)
	if refused := l.who.err(); refused != nil && errors.Is(err, replay.ErrUnavailable) {
		return fmt.Errorf("cluster: node at %s: %w", l.addr, refused)
	}
	return err
}

// peers keeps one connection per fellow replay node.
type peers struct {
	id   *Identity
	book *book

	mu     sync.Mutex
	conns  map[string]*peer
	closed bool
}

// peer is a fellow replay node at its newest known address.
type peer struct {
	id string
	*link
	pb.PeerClient
}

func (p *peer) String() string { return fmt.Sprintf("%s (%s)", p.id, p.addr) }

func newPeers(id *Identity, b *book) *peers {
	return &peers{id: id, book: b, conns: make(map[string]*peer)}
}

// get returns the connection to a node, dialled anew when it moved.
func (p *peers) get(id string) (*peer, error) {
	if p == nil {
		return nil, fmt.Errorf("cluster: no peers in a single process: %w", replay.ErrUnavailable)
	}
	addr, ok := p.book.addr(id)
	if !ok {
		return nil, fmt.Errorf("cluster: no address known of node %s: %w", id, replay.ErrUnavailable)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("cluster: closing: %w", replay.ErrUnavailable)
	}
	old := p.conns[id]
	if old != nil && old.addr == addr {
		return old, nil
	}
	l, err := dial(p.id, addr, id)
	if err != nil {
		return nil, err
	}
	if old != nil {
		_ = old.Close()
	}
	np := &peer{id, l, pb.NewPeerClient(l)}
	p.conns[id] = np
	return np, nil
}

// others lists the fellow nodes in the book, first first.
func (p *peers) others(first string) []*peer {
	if p == nil {
		return nil
	}
	var out []*peer
	for _, e := range p.book.all() {
		if e.Addr == "" {
			p.forget(e.Id)
		}
		if e.Id == p.id.ID || e.Addr == "" {
			continue
		}
		q, err := p.get(e.Id)
		if err != nil {
			continue
		}
		out = append(out, q)
		if e.Id == first {
			copy(out[1:], out[:len(out)-1])
			out[0] = q
		}
	}
	return out
}

// forget closes the connection to a node that was removed: it would go on
// dialling whoever listens there now.
func (p *peers) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conns[id]; c != nil {
		delete(p.conns, id)
		_ = c.Close()
	}
}

func (p *peers) close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, c := range p.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
