package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

const (
	policyKeep  = 4         // adapters a worker goes on serving
	policyBytes = 256 << 20 // of them together; the newest is kept in any case while it comes in
	policyTries = 3         // other workers before the replay nodes
	// policyStall without a byte ends a fetch from another worker. It is longer
	// than pauses of a machine whose cores all compute.
	policyStall = 5 * time.Second
	policyConns = 64 // streams of one connection
)

// Reasons for which a fetch goes on elsewhere (PolicyStats.Fallbacks).
const (
	fellLeader  = "leader"      // it did not say from whom
	fellSilent  = "unreachable" // no connection, or it broke
	fellStalled = "stalled"     // no byte for policyStall
	fellMissing = "not_held"    // the worker has no such adapter any more
	fellRefused = "refused"     // the worker, or its certificate, was refused
	fellDamaged = "damaged"     // what came has another digest or size
)

// PolicyStats counts what a worker fetched.
type PolicyStats struct {
	FromWorkers, FromReplay uint64 // adapters, by who sent the last byte
	Bytes                   uint64 // received
	Served                  uint64 // adapters sent to other workers, whole or from an offset on
	Fallbacks               map[string]uint64
}

// Policies fetches published policies for a worker and passes them on to the
// tenant's other workers. Safe for concurrent use.
type Policies struct {
	c *Client
	// where is the client of the shard where a run lives.
	where func(ctx context.Context, run string) (*Client, error)
	log   *slog.Logger
	*roleServer
	stall time.Duration

	mu    sync.Mutex
	blobs map[string]*incoming
	order []string // of digests, oldest first
	stats PolicyStats
}

// ServePolicies listens for other workers of the tenant. listen as in
// ServeLearner.
func (c *Client) ServePolicies(listen string, log *slog.Logger) (*Policies, error) {
	s := &Policies{c: c, where: func(context.Context, string) (*Client, error) { return c, nil }, log: log, stall: policyStall, blobs: make(map[string]*incoming)}
	s.stats.Fallbacks = make(map[string]uint64)
	var err error
	if s.roleServer, err = c.listenFor(fellows{RoleWorker, "policies", 1 << 16, policyConns}, listen); err != nil {
		return nil, err
	}
	pb.RegisterPoliciesServer(s.server, policyServer{p: s})
	s.serve(log)
	return s, nil
}

// Stats returns the counters.
func (s *Policies) Stats() PolicyStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Fallbacks = maps.Clone(out.Fallbacks)
	return out
}

func (s *Policies) count(f func(*PolicyStats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

// policyServer keeps Policies' own method Get apart from the service's.
type policyServer struct {
	pb.UnimplementedPoliciesServer
	p *Policies
}

// Get sends an adapter to a worker of the same tenant.
func (v policyServer) Get(q *pb.GetBlobRequest, st pb.Policies_GetServer) error {
	s := v.p
	if who := callerOf(st.Context()); who.tenant != s.c.id.Tenant {
		return toStatus(fmt.Errorf("%w: %s asks a worker of another tenant", ErrDenied, who))
	}
	s.mu.Lock()
	b := s.blobs[q.GetDigest()]
	s.mu.Unlock()
	if b == nil {
		return toStatus(fmt.Errorf("%w: policy's adapter %s on worker %s", replay.ErrNotFound, q.GetDigest(), s.c.id.ID))
	}
	s.count(func(c *PolicyStats) { c.Served++ })
	return toStatus(b.send(st.Context(), q.GetOffset(), st.Send))
}

// Get returns a published policy's adapter, verified: from here, from another
// worker that the leading replay node names, or from the replay nodes. A fetch
// that breaks off goes on at its offset elsewhere. Workers' failures are counted
// and logged; errors are those of the replay nodes.
func (s *Policies) Get(ctx context.Context, p replay.Policy) ([]byte, error) {
	for {
		b, mine := s.begin(p.Adapter)
		if mine {
			return s.fetch(ctx, p, b)
		}
		data, err := b.wait(ctx)
		if err == nil || ctx.Err() != nil {
			return data, err
		}
	}
}

// begin returns the blob, and whether the caller is to fetch it.
func (s *Policies) begin(digest string) (b *incoming, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.blobs[digest]; b != nil {
		return b, false
	}
	b = newIncoming(digest)
	s.blobs[digest], s.order = b, append(s.order, digest)
	return b, true
}

// drop forgets a blob that came to nothing.
func (s *Policies) drop(b *incoming, why error) {
	s.mu.Lock()
	if s.blobs[b.digest] == b {
		s.forget(b.digest)
	}
	s.mu.Unlock()
	b.update(func() { b.err = why })
}

// forget removes an entry; the caller holds the lock.
func (s *Policies) forget(digest string) {
	delete(s.blobs, digest)
	for i, d := range s.order {
		if d == digest {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			return
		}
	}
}

// trim forgets old adapters. Those who read one go on.
func (s *Policies) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum int64
	kept := 0
	for i := len(s.order) - 1; i >= 0; i-- {
		b := s.blobs[s.order[i]]
		b.mu.Lock()
		size, done := b.size, b.done
		b.mu.Unlock()
		if !done {
			continue
		}
		if kept++; kept > policyKeep || sum+size > policyBytes {
			s.forget(b.digest)
			continue
		}
		sum += size
	}
}

// fetch fills a blob that begin gave to this caller.
func (s *Policies) fetch(ctx context.Context, p replay.Policy, b *incoming) (data []byte, err error) {
	defer func() {
		if err != nil {
			s.drop(b, err)
			return
		}
		s.trim()
	}()
	home, err := s.where(ctx, p.Run)
	if err != nil {
		return nil, err
	}
	failed := ""
	for range policyTries {
		from, at, err := home.policySource(ctx, p, s.addr, false, failed)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			s.fell(p, "", fellLeader, err)
			break
		}
		if from == "" {
			break
		}
		if err = s.pull(ctx, b, from, at); err == nil {
			if err = b.verify(); err == nil {
				s.count(func(c *PolicyStats) { c.FromWorkers++ })
				s.tell(home, p)
				return b.data, nil
			}
		}
		if ctx.Err() != nil {
			return nil, err
		}
		s.fell(p, from, reasonOf(err), err)
		if errors.Is(err, replay.ErrInvalid) { // nothing of it can be trusted
			b = s.renew(b, err)
		}
		failed = from
	}
	for whole := b.length() == 0; ; whole = true {
		err := home.resumeBlob(ctx, b)
		if err == nil {
			err = b.verify()
		}
		if err == nil {
			s.count(func(c *PolicyStats) { c.FromReplay++ })
			s.tell(home, p)
			return b.data, nil
		}
		if whole || !errors.Is(err, replay.ErrInvalid) {
			return nil, err
		}
		s.fell(p, failed, fellDamaged, err)
		b = s.renew(b, err)
	}
}

// renew begins a blob anew; who reads the old one is told.
func (s *Policies) renew(b *incoming, why error) *incoming {
	n := newIncoming(b.digest)
	s.mu.Lock()
	if s.blobs[b.digest] == b {
		s.blobs[b.digest] = n
	}
	s.mu.Unlock()
	b.update(func() { b.err = why })
	return n
}

// tell lets the leader know that the adapter is here. It is only a hint, and the
// policy need not wait for it.
func (s *Policies) tell(home *Client, p replay.Policy) {
	home.tasks.run(func() {
		if _, _, err := home.policySource(home.ctx, p, s.addr, true, ""); err != nil {
			s.log.Debug("policy held", "run", p.Run, "policy_version", p.Version, "err", err)
		}
	})
}

// fell counts why a fetch goes on elsewhere.
func (s *Policies) fell(p replay.Policy, from, why string, err error) {
	s.count(func(c *PolicyStats) { c.Fallbacks[why]++ })
	s.log.Warn("policy not fetched from a worker", "run", p.Run, "policy_version", p.Version, "from", from, "reason", why, "err", err)
}

var errStalled = errors.New("cluster: no byte in time")

func reasonOf(err error) string {
	switch {
	case errors.Is(err, errStalled):
		return fellStalled
	case errors.Is(err, ErrDenied):
		return fellRefused
	case errors.Is(err, replay.ErrNotFound):
		return fellMissing
	case errors.Is(err, replay.ErrInvalid):
		return fellDamaged
	}
	return fellSilent
}

// pull takes the rest of a blob from another worker.
func (s *Policies) pull(ctx context.Context, b *incoming, id, addr string) (err error) {
	l, err := dialRole(s.c.id, RoleWorker, addr, id, "")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(ctx, attemptTime+blobTime(maxBlob))
	defer cancel()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	stall := time.AfterFunc(s.stall, func() { give(errStalled) })
	defer stall.Stop()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errStalled) {
			err = fmt.Errorf("worker %s: %w", id, errStalled)
		}
	}()
	st, err := pb.NewPoliciesClient(l).Get(ctx, &pb.GetBlobRequest{Digest: b.digest, Offset: b.length()})
	if err != nil {
		return l.fail(err)
	}
	return l.fail(b.take(func() (*pb.BlobChunk, error) {
		c, err := st.Recv()
		if err == nil {
			stall.Reset(s.stall)
			s.count(func(n *PolicyStats) { n.Bytes += uint64(len(c.GetData())) })
		}
		return c, err
	}))
}

// policySource asks the leader, once: a worker that gets no answer has the
// replay nodes.
func (c *Client) policySource(ctx context.Context, p replay.Policy, addr string, held bool, failed string) (id, at string, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	a, err := unary(ctx, c, "source of policy "+p.Adapter, 0, &pb.PolicySourceRequest{
		Run: p.Run, Version: p.Version, Digest: p.Adapter, Addr: addr, Held: held, Failed: failed}, pb.ReplayClient.PolicySource)
	return a.GetId(), a.GetAddr(), err
}

// resumeBlob takes the rest of a blob from the replay nodes.
func (c *Client) resumeBlob(ctx context.Context, b *incoming) error {
	return c.call(ctx, "get blob "+b.digest, blobTime(maxBlob), func(ctx context.Context, l *link, _ bool) error {
		st, err := pb.NewReplayClient(l).GetBlob(ctx, &pb.GetBlobRequest{Digest: b.digest, Offset: b.length()})
		if err != nil {
			return err
		}
		return b.take(st.Recv)
	})
}

// PolicySource answers a worker from the leader's memory.
func (r *replayServer) PolicySource(ctx context.Context, q *pb.PolicySourceRequest) (*pb.PolicySourceResponse, error) {
	n, who := r.n, callerOf(ctx)
	if who.role != RoleWorker {
		return nil, fmt.Errorf("%w: policies go from worker to worker; %s is none", ErrDenied, who)
	}
	if err := n.mustLead(); err != nil {
		return nil, err
	}
	if err := n.store.View(func(kv replay.Reader) error {
		p, err := replay.PolicyAt(kv, q.GetRun(), q.GetVersion())
		if err == nil && (p.Adapter != q.GetDigest() || p.Adapter == "") {
			err = fmt.Errorf("%w: policy version %d of run %q has adapter %q, not %q", replay.ErrInvalid, p.Version, p.Run, p.Adapter, q.GetDigest())
		}
		return err
	}); err != nil {
		return nil, err
	}
	key, now := policyKey{who.tenant, q.GetDigest()}, time.Now()
	if q.GetHeld() {
		n.policies.holds(key, who.id, q.GetAddr(), now)
		return &pb.PolicySourceResponse{}, nil
	}
	id, addr := n.policies.source(key, who.id, q.GetAddr(), q.GetFailed(), now, func(id string) bool {
		s, heard := n.live.get(RoleWorker, id) // a new leader has not heard from everybody yet
		return heard && now.Sub(s.LastSeen) > n.live.alive
	})
	return &pb.PolicySourceResponse{Id: id, Addr: addr}, nil
}
