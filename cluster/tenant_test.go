package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// joinTenant makes a client with the certificate of a tenant's process, got with
// the tenant's token, or with the cluster's where role is for all tenants.
func (c *testCluster) joinTenant(tenant, id, role string) *Client {
	c.t.Helper()
	own, err := ParseToken(c.token)
	require.NoError(c.t, err)
	tok, err := own.For(tenant, role)
	require.NoError(c.t, err)
	dir := c.t.TempDir()
	cl, err := Connect(testCtx(c.t), JoinConfig{Addrs: []string{c.nodes[0].Addr()}, Token: tok, ID: id, Role: role, Dir: dir})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func TestTenantTokens(t *testing.T) {
	t.Parallel()
	id, err := newCluster("n0")
	require.NoError(t, err)
	own := id.Token()
	a, err := own.For("a", "")
	require.NoError(t, err)
	worker, err := own.For("a", RoleWorker)
	require.NoError(t, err)
	shared, err := own.For(AllTenants, RoleWorker)
	require.NoError(t, err)
	for _, tok := range []Token{a, worker, shared} {
		back, err := ParseToken(tok.Reveal())
		require.NoError(t, err)
		require.Equal(t, tok, back)
		require.NotContains(t, tok.String(), tok.secret)
		require.NotContains(t, tok.Reveal(), own.secret)
	}
	ok := func(shown Token, role, tenant string) {
		t.Helper()
		require.NoError(t, own.admitsAs(shown, role, tenant))
	}
	no := func(shown Token, role, tenant, why string) {
		t.Helper()
		require.ErrorContains(t, own.admitsAs(shown, role, tenant), why)
	}
	ok(own, RoleReplay, "")
	ok(own, RoleWorker, "")
	ok(own, RoleLearner, "a")
	ok(own, RoleWorker, AllTenants)
	no(own, RoleReplay, "a", "leave it out")
	no(own, RoleLearner, AllTenants, "belongs to one tenant")
	ok(a, RoleWorker, "a")
	ok(a, RoleClient, "a")
	no(a, RoleWorker, "b", `of tenant "a", not "b"`)
	no(a, RoleWorker, "", `of tenant "a", not ""`)
	no(a, RoleReplay, "a", "admits no replay node")
	ok(worker, RoleWorker, "a")
	no(worker, RoleLearner, "a", "for role worker")
	ok(shared, RoleWorker, AllTenants)
	no(Token{tenant: "b", secret: a.secret}, RoleWorker, "b", "not of this cluster")
	no(Token{tenant: "a", secret: own.secret}, RoleWorker, "a", "not of this cluster")
	next := newToken(id.ca.Raw)
	require.ErrorContains(t, next.admitsAs(a, RoleWorker, "a"), "rotated away")

	for _, bad := range []struct{ tenant, role string }{{"", ""}, {"default", ""}, {"a.b", ""}, {"a", "replay"}, {"*", RoleLearner}} {
		_, err := own.For(bad.tenant, bad.role)
		require.Error(t, err, bad)
	}
	_, err = a.For("b", "")
	require.ErrorContains(t, err, "itself one of tenant")
}

// Calls of one tenant's process about another's run, one for every method there
// is but those between nodes: a method that is added later is covered too.
func TestNoCallTouchesAnotherTenantsRun(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	a := c.joinTenant("a", "learner-a", RoleLearner)
	require.NoError(t, a.CreateRun(testCtx(t), testSpec("mine")))
	step := trainStep(t, a, "mine")
	st, err := a.Status(testCtx(t), "mine")
	require.NoError(t, err)
	require.Equal(t, "a", st.Spec.Tenant, "the certificate says whose run it is")
	require.NoError(t, c.dial("op", RoleClient).CreateRun(testCtx(t), testSpec("default")))

	free := map[string]bool{"CreateRun": true, "Runs": true, "Tenants": true}
	for _, other := range []*Client{c.joinTenant("b", "worker-b", RoleWorker), c.joinTenant("b", "client-b", RoleClient), c.dial("w0", RoleWorker), c.dial("l0", RoleLearner)} {
		l, err := dial(other.id, c.nodes[0].Addr(), "")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		tried := 0
		for _, m := range methods(pb.File_skein_cluster_v1_replay_proto, pb.File_skein_cluster_v1_operate_proto) {
			name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
			if free[string(m.Name())] || slices.Contains(everybodysStreams, name) {
				continue
			}
			req := message(t, m.Input())
			if f := m.Input().Fields().ByName("run"); f != nil {
				req.ProtoReflect().Set(f, protoreflect.ValueOfString("mine"))
			}
			var err error
			if m.IsStreamingClient() || m.IsStreamingServer() {
				st, serr := l.NewStream(testCtx(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
				require.NoError(t, serr)
				_ = st.SendMsg(req)
				err = l.fail(st.RecvMsg(message(t, m.Output())))
			} else {
				err = l.fail(l.Invoke(testCtx(t), name, req, message(t, m.Output())))
			}
			require.ErrorIs(t, err, ErrDenied, "%s by %s", m.FullName(), other.id.caller())
			tried++
		}
		require.Greater(t, tried, 30)

		// Streams, and what lists.
		_, err = other.Fetch(testCtx(t), step.LogIDs[:1])
		require.ErrorIs(t, err, ErrDenied)
		_, err = other.Append(testCtx(t), []replay.Record{testRecord("mine", "x", 10)})
		require.ErrorIs(t, err, ErrDenied)
		runs, err := other.Runs(testCtx(t))
		require.NoError(t, err)
		require.NotContains(t, runs, "mine")
		tenants, err := other.Tenants(testCtx(t))
		require.NoError(t, err)
		for _, x := range tenants {
			require.Equal(t, other.id.Tenant, x.Tenant)
		}
		require.ErrorIs(t, other.RemoveNode(testCtx(t), "n0"), ErrDenied)
		_, err = other.RotateToken(testCtx(t))
		require.ErrorIs(t, err, ErrDenied)
	}
	// A run that is not there may be another tenant's by the time of the call.
	nobody := c.joinTenant("b", "early-b", RoleClient)
	_, err = nobody.Append(testCtx(t), []replay.Record{testRecord("soon", "x", 10)})
	require.ErrorIs(t, err, replay.ErrInvalid)
	_, err = nobody.Latest(testCtx(t), "soon")
	require.ErrorIs(t, err, replay.ErrNotFound)
	err = c.joinTenant("b", "learner-b", RoleLearner).CreateRun(testCtx(t), testSpec("mine"))
	require.ErrorContains(t, err, "another tenant's")

	// Whom it concerns goes on; operators and workers of all tenants see it.
	recs, err := a.Fetch(testCtx(t), step.LogIDs)
	require.NoError(t, err)
	require.Len(t, recs, 2)
	for _, sees := range []*Client{c.dial("op2", RoleClient), c.joinTenant(AllTenants, "fleet", RoleWorker)} {
		runs, err := sees.Runs(testCtx(t))
		require.NoError(t, err)
		require.Equal(t, []string{"default", "mine"}, runs)
		_, err = sees.Fetch(testCtx(t), step.LogIDs)
		require.NoError(t, err)
	}
	tks, err := c.joinTenant(AllTenants, "fleet2", RoleWorker).TakeTickets(testCtx(t), "mine", "fleet2", replay.AnyVersion, 1, time.Second)
	require.NoError(t, err)
	require.Len(t, tks, 1)
	require.ErrorIs(t, c.joinTenant(AllTenants, "fleet3", RoleWorker).CreateRun(testCtx(t), testSpec("whose")), ErrDenied)
}

// methods of every service of some files.
func methods(files ...protoreflect.FileDescriptor) (out []protoreflect.MethodDescriptor) {
	for _, f := range files {
		for s := range f.Services().Len() {
			ms := f.Services().Get(s).Methods()
			for i := range ms.Len() {
				out = append(out, ms.Get(i))
			}
		}
	}
	return out
}

func message(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	require.NoError(t, err)
	return mt.New().Interface()
}

// A renewed certificate is of the same tenant.
func TestRenewedCertificateKeepsItsTenant(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	a := c.joinTenant("a", "w", RoleWorker)
	old := a.id.leaf().SerialNumber
	eventually(t, "a later second", func() bool { return a.renew(testCtx(t)) == nil })
	require.NotEqual(t, old, a.id.leaf().SerialNumber)
	who, err := certNode(a.id.leaf())
	require.NoError(t, err)
	require.Equal(t, caller{"w", RoleWorker, "a"}, who)
}

func TestTenantsDoNotSeeEachOthersProcesses(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	a, b := c.joinTenant("a", "w", RoleWorker), c.joinTenant("b", "w", RoleWorker)
	require.NoError(t, a.Heartbeat(testCtx(t), NodeInfo{ID: "w", Role: RoleWorker, LastError: "secret of a"}))
	require.ErrorIs(t, b.Heartbeat(testCtx(t), NodeInfo{ID: "w", Role: RoleWorker}), ErrDenied, "the id is in use")
	seen := func(cl *Client) (out []string) {
		s, err := cl.ClusterStatus(testCtx(t))
		require.NoError(t, err)
		for _, n := range s.Nodes {
			out = append(out, n.ID+" "+n.Tenant)
		}
		return out
	}
	require.Equal(t, []string{"n0 ", "w a"}, seen(a))
	require.Equal(t, []string{"n0 "}, seen(b))
	require.Equal(t, []string{"n0 ", "w a"}, seen(c.dial("op", RoleClient)))
	require.Equal(t, []string{"n0 "}, seen(c.dial("w0", RoleWorker)))
}

// A tenant over its quota is told so, before its bytes are written, and the
// other goes on.
func TestQuotaOverTheWire(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	op, a, b := c.dial("op", RoleClient), c.joinTenant("a", "a", RoleClient), c.joinTenant("b", "b", RoleClient)
	for _, x := range []struct {
		cl  *Client
		run string
	}{{a, "ra"}, {b, "rb"}} {
		require.NoError(t, x.cl.CreateRun(testCtx(t), testSpec(x.run)))
	}
	v, err := op.SetQuota(testCtx(t), "a", replay.Quota{Logs: 2, Tickets: 1}, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(1), v)
	_, err = a.SetQuota(testCtx(t), "a", replay.Quota{}, 1)
	require.ErrorIs(t, err, ErrDenied)
	res, err := a.Append(testCtx(t), []replay.Record{testRecord("ra", "a1", 100), testRecord("ra", "a2", 100)})
	require.NoError(t, err)
	require.Equal(t, make([]replay.AppendResult, 2), res)
	res, err = a.Append(testCtx(t), []replay.Record{testRecord("ra", "a3", 100)})
	require.ErrorIs(t, err, replay.ErrBusy)
	require.ErrorContains(t, err, `quota of tenant "a": 2 logs are stored`)
	require.Contains(t, res[0].Busy, "at most logs = 2")
	for i := range 5 {
		_, err := b.Append(testCtx(t), []replay.Record{testRecord("rb", fmt.Sprint("b", i), 100)})
		require.NoError(t, err)
	}
	tks, err := a.TakeTickets(testCtx(t), "ra", "w", replay.AnyVersion, 3, time.Second)
	require.NoError(t, err)
	require.Len(t, tks, 1)
	ctx, cancel := context.WithTimeout(testCtx(t), 3*time.Second)
	defer cancel()
	tks, err = a.TakeTickets(ctx, "ra", "w2", replay.AnyVersion, 3, 20*time.Millisecond)
	require.Empty(t, tks)
	require.True(t, err == nil || errors.Is(err, context.DeadlineExceeded), err)
	own, err := a.Tenants(testCtx(t))
	require.NoError(t, err)
	require.Len(t, own, 1)
	require.Equal(t, []uint64{2, 200, 1}, []uint64{own[0].Logs, own[0].Bytes, own[0].Tickets})
	all, err := op.Tenants(testCtx(t))
	require.NoError(t, err)
	require.Len(t, all, 3) // default, a, b
}
