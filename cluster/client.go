package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// Client is a replay.Store on a cluster. It finds the leader, follows it, and
// tries again, with backoff and jitter, until the call's ctx ends (60 s when it
// has no deadline). What it repeats is idempotent in the fold. Safe for
// concurrent use.
type Client struct {
	id   *Identity
	book *book
	dir  string // of the certificate, "" = memory only
	// group is the raft group that it speaks to; "" = that of any node that answers.
	group string

	mu     sync.Mutex
	seeds  []string
	links  map[string]*link
	leader string // address, "" = unknown
	next   int    // of the addresses to try
	append *appendStream
	closed bool

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	tasks tracker
}

// Dial returns a client for the nodes at addrs, and for those in the address
// book that Join left in dir ("" = none). It waits until a node answers, whether
// there is a leader or not; a node of another cluster is ErrDenied.
func Dial(ctx context.Context, addrs []string, id *Identity, dir string) (*Client, error) {
	if id == nil {
		return nil, errors.New("cluster: dial: no identity: Join first")
	}
	b, err := openBook(dir)
	if err != nil {
		return nil, err
	}
	c := &Client{id: id, book: b, dir: dir, group: id.group, seeds: slices.Clone(addrs), links: make(map[string]*link)}
	if len(c.addrs()) == 0 {
		return nil, errors.New("cluster: dial: no address: name a running replay node")
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if _, err := c.ClusterStatus(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if id.caKey == nil { // a replay node renews its own
		c.tasks.run(func() { id.keepFresh(c.ctx, slog.Default(), c.renew) })
	}
	return c, nil
}

// addrs lists where a node may answer: the book first, which is fresher.
func (c *Client) addrs() []string {
	out := c.book.addrs()
	for _, s := range c.seeds {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// pick chooses the node to ask: the leader when known, else the next in turn.
func (c *Client) pick() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("cluster: client closed: %w", replay.ErrInvalid)
	}
	addr := c.leader
	if addr == "" {
		all := c.addrs()
		addr = all[c.next%len(all)]
		c.next++
	}
	l := c.links[addr]
	if l == nil {
		var err error
		if l, err = dialRole(c.id, RoleReplay, addr, "", c.group); err != nil {
			return nil, err
		}
		c.links[addr] = l
	}
	return l, nil
}

// learn notes what a failed try said about the leader. It returns true when
// the next try should follow at once.
func (c *Client) learn(l *link, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nl *notLeaderError
	if errors.As(err, &nl) && nl.addr != "" && nl.addr != l.addr {
		follow := c.leader != nl.addr
		c.leader = nl.addr
		return follow
	}
	if c.leader == l.addr {
		c.leader = ""
	}
	return false
}

// settle notes that a node answered as leader.
func (c *Client) settle(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = l.addr
}

// call runs try against the leader until it succeeds, fails for good, or ctx
// ends. wait is how long the leader may rightly think. retry tells try that an
// earlier try may have had its effect.
func (c *Client) call(ctx context.Context, what string, wait time.Duration, try func(ctx context.Context, l *link, retry bool) error) error {
	ctx, cancel := bounded(ctx, wait)
	defer cancel()
	var last error
	denied := make(map[string]error)
	start, tries, hops := time.Now(), 0, 0
	for b := (backoffTimer{}); ; {
		l, err := c.pick()
		if err != nil {
			return err
		}
		tries++
		attempt, done := context.WithTimeout(ctx, attemptTime+wait)
		err = l.fail(try(attempt, l, tries > 1))
		done()
		switch {
		case err == nil:
			c.settle(l)
			return nil
		case errors.Is(err, errOtherCluster):
			// Others of the addresses may be right.
			if denied[l.addr] = err; len(denied) == len(c.addrs()) {
				return err
			}
		case !retryable(err):
			return err
		}
		last = err
		if ctx.Err() == nil {
			if c.learn(l, err) && hops < 8 {
				hops++
				continue
			}
			hops = 0
			if b.sleep(ctx) {
				continue
			}
		}
		return fmt.Errorf("cluster: %s: gave up after %s and %d tries: %w: %w (last: %w)", what,
			time.Since(start).Round(time.Millisecond), tries, replay.ErrUnavailable, ctx.Err(), last)
	}
}

// Heartbeat tells the leader about this process; every couple of seconds will
// do. It also keeps the client's address book fresh.
func (c *Client) Heartbeat(ctx context.Context, info NodeInfo) error {
	return c.call(ctx, "heartbeat", 0, func(ctx context.Context, l *link, _ bool) error {
		resp, err := pb.NewMembershipClient(l).Heartbeat(ctx, &pb.HeartbeatRequest{Info: infoTo(info)})
		if err != nil {
			return err
		}
		_, err = c.book.merge(resp.GetNodes()...)
		return err
	})
}

// ClusterStatus is the leader's view, or that of any node while there is no
// leader.
func (c *Client) ClusterStatus(ctx context.Context) (ClusterStatus, error) {
	var out ClusterStatus
	err := c.call(ctx, "cluster status", 0, func(ctx context.Context, l *link, retry bool) error {
		resp, err := pb.NewMembershipClient(l).ClusterStatus(ctx, &pb.ClusterStatusRequest{Stale: retry})
		if err != nil {
			return err
		}
		out = clusterStatusFrom(resp)
		return nil
	})
	if err != nil {
		return out, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = ""
	for _, n := range out.Nodes {
		if n.Role == RoleReplay && n.Addr != "" && !slices.Contains(c.seeds, n.Addr) {
			c.seeds = append(c.seeds, n.Addr)
		}
		if n.Leader {
			c.leader = n.Addr
		}
	}
	return out, nil
}

// RemoveNode takes a replay node out of the group for good; its id can't be
// used again. Stop the node before or after.
func (c *Client) RemoveNode(ctx context.Context, id string) error {
	return c.call(ctx, "remove node "+id, 0, func(ctx context.Context, l *link, _ bool) error {
		_, err := pb.NewMembershipClient(l).RemoveNode(ctx, &pb.RemoveNodeRequest{Id: id})
		return err
	})
}

// Nodes lists the replay nodes' addresses known now.
func (c *Client) Nodes() string { return strings.Join(c.addrs(), ",") }

// Close ends the connections and waits for the client's goroutines.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	links := c.links
	c.mu.Unlock()
	c.stop()
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Close())
	}
	c.tasks.close()
	return errors.Join(errs...)
}
