package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"pgregory.net/rapid"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/blob"
)

func nobody(string) bool { return false }

// The tree: two fetch from the replay nodes, no worker serves more than two at
// once, nobody waits for itself, and whoever is given up is left out.
func TestPolicyTree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, key, now := newPolicyForest(), policyKey{"", "d"}, time.Unix(0, 0)
		from := map[string]string{} // fetches under way
		gaveUp := map[[2]string]bool{}
		silent := map[string]bool{}
		for range rapid.IntRange(1, 120).Draw(t, "operations") {
			id := fmt.Sprint("w", rapid.IntRange(0, 30).Draw(t, "worker"))
			now = now.Add(time.Second)
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				silent[id] = true
			case 1:
				if _, going := from[id]; going {
					f.holds(key, id, id+":1", now)
					delete(from, id)
				}
			default:
				failed := ""
				if src := from[id]; src != "" {
					failed = src
					gaveUp[[2]string{id, src}] = true
				}
				delete(from, id)
				src, at := f.source(key, id, id+":1", failed, now, func(id string) bool { return silent[id] })
				from[id] = src
				if src == "" {
					break
				}
				require.Equal(t, src+":1", at)
				require.False(t, silent[src], "%s is silent", src)
				require.False(t, gaveUp[[2]string{id, src}], "%s gave %s up", id, src)
				serves := 0
				for _, s := range from {
					if s == src {
						serves++
					}
				}
				require.LessOrEqual(t, serves, policyFanout)
				for hop, n := src, 0; hop != ""; hop, n = from[hop], n+1 {
					require.NotEqual(t, id, hop, "%s waits for itself", id)
					require.Less(t, n, 40)
				}
			}
		}
	})
}

func TestPolicyTreeSpreads(t *testing.T) {
	t.Parallel()
	// Everybody asks at once: only the roots burden the replay nodes, and the
	// tree is as deep as its fan-out makes it.
	f, key, now := newPolicyForest(), policyKey{"", "d"}, time.Unix(0, 0)
	replays := 0
	for i := range 1000 {
		if src, _ := f.source(key, fmt.Sprint(i), "a:1", "", now, nobody); src == "" {
			replays++
		}
	}
	require.Equal(t, policyRoots, replays)
	depth := 0
	for _, h := range f.trees[key].line {
		depth = max(depth, h.depth)
	}
	require.Equal(t, 8, depth) // 2 + 4 + … + 2^(8+1) = 1022 places
	// Another tenant begins its own, and a claim nobody tells of any more ends.
	src, _ := f.source(policyKey{"b", "d"}, "x", "x:1", "", now, nobody)
	require.Empty(t, src)
	f = newPolicyForest()
	for i := range 4 {
		f.source(key, fmt.Sprint(i), "a:1", "", now, nobody)
	}
	require.Equal(t, 1, f.trees[key].nodes["0"].serves)
	f.source(key, "9", "a:1", "", now.Add(policyStuck+time.Minute), nobody)
	for _, h := range f.trees[key].line {
		require.LessOrEqual(t, h.serves, 1, h.id)
	}
	for i := range policyTrees + 5 {
		f.source(policyKey{"", fmt.Sprint(i)}, "x", "x:1", "", now, nobody)
	}
	require.Len(t, f.trees, policyTrees)
}

// published is a run whose first policy is a blob of that size.
func published(t *testing.T, c *testCluster, run string, size int) (replay.Policy, []byte) {
	t.Helper()
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(1, uint64(size)))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	l := joined(t, c, RoleLearner, "learner-"+run)
	d, err := l.PutBlob(testCtx(t), data)
	require.NoError(t, err)
	spec := testSpec(run)
	spec.StartAdapter = d
	require.NoError(t, l.CreateRun(testCtx(t), spec))
	return replay.Policy{Run: run, Version: 0, Adapter: d}, data
}

func serving(t *testing.T, c *Client) *Policies {
	t.Helper()
	p, err := c.ServePolicies("127.0.0.1:0", testLog(t))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func TestPoliciesGoFromWorkerToWorker(t *testing.T) {
	c := newTestCluster(t, 1)
	p, data := published(t, c, "r", 5*blobPiece+17)
	var ws []*Policies
	for i := range 8 {
		ws = append(ws, serving(t, joined(t, c, RoleWorker, fmt.Sprint("w", i))))
	}
	var wg sync.WaitGroup
	for _, w := range ws {
		for range 2 { // of two who want it in one process one fetches
			wg.Go(func() {
				got, err := w.Get(testCtx(t), p)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			})
		}
	}
	wg.Wait()
	var sum PolicyStats
	for _, w := range ws {
		s := w.Stats()
		require.Equal(t, uint64(1), s.FromWorkers+s.FromReplay)
		require.Empty(t, s.Fallbacks)
		sum.FromReplay += s.FromReplay
		sum.FromWorkers += s.FromWorkers
		sum.Served += s.Served
	}
	require.Equal(t, uint64(policyRoots), sum.FromReplay)
	require.Equal(t, sum.FromWorkers, sum.Served)

	// An adapter that is nobody's, one of another version, and none at all.
	cl := joined(t, c, RoleWorker, "asks")
	for _, q := range []replay.Policy{{Run: "r", Adapter: blob.Digest([]byte("x"))}, {Run: "r", Version: 7, Adapter: p.Adapter}, {Run: "none", Adapter: p.Adapter}} {
		_, _, err := cl.policySource(testCtx(t), q, "", false, "")
		require.Error(t, err, q)
	}
	_, _, err := joined(t, c, RoleLearner, "l2").policySource(testCtx(t), p, "", false, "")
	require.ErrorIs(t, err, ErrDenied)
	_, err = joined(t, c, RoleLearner, "l3").ServePolicies("", testLog(t))
	require.ErrorContains(t, err, "join as worker")
}

// fake is a worker in the tree that sends what a test says.
type fake struct {
	pb.UnimplementedPoliciesServer
	get func(*pb.GetBlobRequest, pb.Policies_GetServer) error
}

func (f fake) Get(q *pb.GetBlobRequest, st pb.Policies_GetServer) error { return f.get(q, st) }

// Whatever another worker does, the adapter arrives whole, and why it came from
// elsewhere is counted.
func TestPoliciesFallBack(t *testing.T) {
	c := newTestCluster(t, 1)
	p, data := published(t, c, "r", 3*blobPiece)
	half := func(st pb.Policies_GetServer, offset int64) {
		_ = st.Send(&pb.BlobChunk{Digest: p.Adapter, Size: int64(len(data)), Data: data[offset : offset+1000]})
	}
	for i, x := range []struct {
		name, reason string
		get          func(*pb.GetBlobRequest, pb.Policies_GetServer) error
		resumes      bool
	}{
		{"breaks off", fellSilent, func(q *pb.GetBlobRequest, st pb.Policies_GetServer) error {
			half(st, q.GetOffset())
			return toStatus(replay.ErrUnavailable)
		}, true},
		{"ends early", fellSilent, func(q *pb.GetBlobRequest, st pb.Policies_GetServer) error {
			half(st, q.GetOffset())
			return nil
		}, true},
		{"stalls", fellStalled, func(q *pb.GetBlobRequest, st pb.Policies_GetServer) error {
			half(st, q.GetOffset())
			<-st.Context().Done()
			return nil
		}, false}, // on a busy machine the stall may come before the first byte
		{"has it no more", fellMissing, func(*pb.GetBlobRequest, pb.Policies_GetServer) error {
			return toStatus(replay.ErrNotFound)
		}, false},
		{"sends other bytes", fellDamaged, func(_ *pb.GetBlobRequest, st pb.Policies_GetServer) error {
			bad := bytes.Clone(data)
			bad[len(bad)/2]++
			return sendBlob(p.Adapter, bad, st.Send)
		}, false},
		{"sends too much", fellDamaged, func(_ *pb.GetBlobRequest, st pb.Policies_GetServer) error {
			return st.Send(&pb.BlobChunk{Digest: p.Adapter, Size: 5, Data: data[:100]})
		}, false},
		{"lies about the size and stalls", fellStalled, func(_ *pb.GetBlobRequest, st pb.Policies_GetServer) error {
			_ = st.Send(&pb.BlobChunk{Digest: p.Adapter, Size: 5000, Data: data[:100]})
			<-st.Context().Done()
			return nil
		}, false},
		{"refuses", fellRefused, func(*pb.GetBlobRequest, pb.Policies_GetServer) error { return toStatus(ErrDenied) }, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.nodes[0].policies.forgetAll()
			for range policyRoots {
				c.nodes[0].policies.source(policyKey{"", p.Adapter}, fmt.Sprint("root", i), "", "", time.Now(), nobody)
			}
			liar := serving(t, joined(t, c, RoleWorker, fmt.Sprint("liar", i)))
			liar.server.Stop()
			srv := serveFake(t, liar.c, fake{get: x.get})
			c.nodes[0].policies.holds(policyKey{"", p.Adapter}, liar.c.id.ID, srv, time.Now())
			w := serving(t, joined(t, c, RoleWorker, fmt.Sprint("w", i)))
			w.stall = patience // the machine may be busy
			if x.reason == fellStalled {
				w.stall = 300 * time.Millisecond
			}
			got, err := w.Get(testCtx(t), p)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			s := w.Stats()
			require.Equal(t, uint64(1), s.Fallbacks[x.reason], s)
			require.Equal(t, uint64(1), s.FromReplay)
			if x.resumes {
				require.Equal(t, uint64(1000), s.Bytes)
			}
		})
	}
	t.Run("is gone", func(t *testing.T) {
		c.nodes[0].policies.forgetAll()
		for range policyRoots {
			c.nodes[0].policies.source(policyKey{"", p.Adapter}, "root", "", "", time.Now(), nobody)
		}
		gone := serving(t, joined(t, c, RoleWorker, "gone"))
		c.nodes[0].policies.holds(policyKey{"", p.Adapter}, "gone", gone.Addr(), time.Now())
		gone.Close()
		w := serving(t, joined(t, c, RoleWorker, "left"))
		_, err := w.Get(testCtx(t), p)
		require.NoError(t, err)
		require.Equal(t, map[string]uint64{fellSilent: 1}, w.Stats().Fallbacks)
	})
}

func TestPoliciesKeepTenantsApart(t *testing.T) {
	c := newTestCluster(t, 1)
	p, _ := published(t, c, "r", 1000)
	own := serving(t, joined(t, c, RoleWorker, "own"))
	_, err := own.Get(testCtx(t), p)
	require.NoError(t, err)
	other := c.joinTenant("a", "other", RoleWorker)
	_, _, err = other.policySource(testCtx(t), p, "", false, "")
	require.ErrorIs(t, err, ErrDenied)
	for _, cl := range []*Client{other, joined(t, c, RoleLearner, "l"), joined(t, c, RoleClient, "cl")} {
		l, err := dialRole(cl.id, RoleWorker, own.Addr(), "own", "")
		require.NoError(t, err)
		st, err := pb.NewPoliciesClient(l).Get(testCtx(t), &pb.GetBlobRequest{Digest: p.Adapter})
		require.NoError(t, err)
		_, err = st.Recv()
		require.ErrorIs(t, l.fail(err), ErrDenied, cl.id.ID)
		require.NoError(t, l.Close())
	}
}

func TestPoliciesForgetOldOnes(t *testing.T) {
	t.Parallel()
	s := &Policies{blobs: map[string]*incoming{}}
	for i := range 10 {
		b, mine := s.begin(fmt.Sprint(i))
		require.True(t, mine)
		if i != 3 { // comes in for long
			b.size, b.done = 1, true
		}
		s.trim()
	}
	require.Equal(t, []string{"3", "6", "7", "8", "9"}, s.order)
	b, mine := s.begin("big")
	require.True(t, mine)
	b.size, b.done = policyBytes+1, true
	s.trim()
	require.NotContains(t, s.order, "big")
	s.drop(s.blobs["3"], errors.New("no"))
	require.NotContains(t, s.blobs, "3")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := newIncoming("x").wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// serveFake serves with a worker's certificate and returns the address.
func serveFake(t *testing.T, c *Client, f fake) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(c.id.serverTLS())))
	pb.RegisterPoliciesServer(srv, f)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() { srv.Stop(); wg.Wait() })
	return ln.Addr().String()
}

// Case "a worker too far behind": it gets no work until it serves a newer policy;
// one whose policy was published just now is not too far behind.
func TestStaleWorkersGetNoWork(t *testing.T) {
	c := newTestCluster(t, 1)
	cl := joined(t, c, RoleLearner, "l")
	spec := testSpec("r")
	spec.MaxStaleness = 1
	require.NoError(t, cl.CreateRun(testCtx(t), spec))
	for range 4 {
		trainStep(t, cl, "r")
	}
	_, err := cl.TakeTickets(testCtx(t), "r", "w2", 1, 1, time.Minute)
	require.ErrorIs(t, err, replay.ErrStale)
	require.ErrorContains(t, err, `worker "w2" serves policy version 1 of run "r", the latest is 4 and max_staleness is 1: it gets work again when it serves version 2 or later`)
	for _, serves := range []uint64{2, 4, replay.AnyVersion} {
		tks, err := cl.TakeTickets(testCtx(t), "r", "w2", serves, 1, time.Second)
		require.NoError(t, err)
		require.Len(t, tks, 1)
		require.NoError(t, cl.ReturnTicket(testCtx(t), "r", tks[0].Group, "w2"))
	}
	// What a lost answer gave comes again with a retry.
	req := &pb.TakeTicketsRequest{Run: "r", Worker: "w3", N: 1, RequestId: "x", Serves: new(uint64)}
	*req.Serves = 4
	l, err := dial(cl.id, c.nodes[0].Addr(), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	a, err := pb.NewReplayClient(l).TakeTickets(testCtx(t), req)
	require.NoError(t, err)
	*req.Serves, req.Retry = 0, true
	b, err := pb.NewReplayClient(l).TakeTickets(testCtx(t), req)
	require.NoError(t, err)
	require.Equal(t, a.GetTickets()[0].GetGroup(), b.GetTickets()[0].GetGroup())
}

// forgetAll empties the forest of a node that serves.
func (f *policyForest) forgetAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trees, f.order = make(map[policyKey]*policyTree), nil
}
