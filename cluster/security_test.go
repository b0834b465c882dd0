package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

func TestTokenText(t *testing.T) {
	t.Parallel()
	id, err := newCluster("n0")
	require.NoError(t, err)
	tok := id.Token()
	back, err := ParseToken(" " + tok.Reveal() + "\n")
	require.NoError(t, err)
	require.Equal(t, tok, back)
	require.True(t, tok.admits(back.secret))
	require.False(t, tok.admits(back.secret+"x"))
	require.False(t, Token{}.admits(""))
	for _, s := range []string{tok.String(), tok.GoString()} {
		require.NotContains(t, s, tok.secret)
	}

	parts := strings.Split(tok.Reveal(), ".")
	for name, bad := range map[string]string{
		"empty":       "",
		"no dots":     "skein1",
		"version":     "skein2." + parts[1] + "." + parts[2],
		"fingerprint": "skein1.abcd." + parts[2],
		"not hex":     "skein1." + strings.Repeat("z", 64) + "." + parts[2],
		"secret":      "skein1." + parts[1] + ".abc",
		"cut":         tok.Reveal()[:80],
		"more":        tok.Reveal() + ".x",
	} {
		_, err := ParseToken(bad)
		require.ErrorContains(t, err, "copy the file", name)
	}
}

func FuzzParseToken(f *testing.F) {
	id, err := newCluster("n0")
	require.NoError(f, err)
	f.Add(id.Token().Reveal())
	f.Add("skein1..")
	tenant, err := id.Token().For("a", RoleWorker)
	require.NoError(f, err)
	f.Add(tenant.Reveal())
	f.Add("skein1." + strings.Repeat("0", 64) + "." + strings.Repeat("A", 22))
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err != nil {
			return
		}
		again, err := ParseToken(tok.Reveal())
		if err != nil || again != tok {
			t.Fatalf("%q: %v", s, err)
		}
	})
}

func TestIdentityFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := LoadIdentity(dir)
	require.ErrorIs(t, err, ErrNoIdentity)
	id, err := newCluster("n0")
	require.NoError(t, err)
	require.NoError(t, id.save(dir))
	back, err := LoadIdentity(dir)
	require.NoError(t, err)
	require.Equal(t, id.ID, back.ID)
	require.Equal(t, id.Token(), back.Token())
	require.True(t, id.caKey.Equal(back.caKey))
	for _, f := range []string{fileCACert, fileCAKey, fileNodeCert, fileNodeKey, fileToken} {
		st, err := os.Stat(filepath.Join(dir, f))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm(), f)
	}
	for _, f := range []string{fileCACert, fileCAKey, fileNodeKey, fileToken} {
		old, err := os.ReadFile(filepath.Join(dir, f))
		require.NoError(t, err)
		require.NoError(t, os.Remove(filepath.Join(dir, f)))
		_, err = LoadIdentity(dir)
		require.ErrorContains(t, err, f, "missing")
		require.NoError(t, os.WriteFile(filepath.Join(dir, f), []byte("junk"), 0o600))
		_, err = LoadIdentity(dir)
		require.Error(t, err, "damaged")
		require.NoError(t, os.WriteFile(filepath.Join(dir, f), old, 0o600))
	}
	// A certificate of another authority under ours.
	ca := filepath.Join(dir, fileCACert)
	ours, err := os.ReadFile(ca)
	require.NoError(t, err)
	other, err := newCluster("n0")
	require.NoError(t, err)
	require.NoError(t, other.save(dir))
	require.NoError(t, os.WriteFile(ca, ours, 0o600))
	_, err = LoadIdentity(dir)
	require.ErrorContains(t, err, "not signed by")
}

func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	other := newTestCluster(t, 1)
	tok, err := ParseToken(c.token)
	require.NoError(t, err)
	join := func(addr string, tok Token, id, role, dir string) error {
		_, err := Join(testCtx(t), JoinConfig{Addrs: []string{addr}, Token: tok, ID: id, Role: role, Dir: dir})
		return err
	}
	addr := c.nodes[0].Addr()

	wrong := tok
	wrong.secret = newToken(nil).secret
	err = join(addr, wrong, "w1", RoleWorker, t.TempDir())
	require.ErrorIs(t, err, ErrDenied)
	require.ErrorContains(t, err, "copy the file")
	require.NotContains(t, err.Error(), tok.secret)
	require.NotContains(t, err.Error(), wrong.secret)

	// The right secret must not even be shown to another cluster.
	err = join(other.nodes[0].Addr(), tok, "w1", RoleWorker, t.TempDir())
	require.ErrorIs(t, err, errOtherCluster)
	require.ErrorContains(t, err, other.nodes[0].Identity().Cluster())

	require.ErrorContains(t, join(addr, tok, "w 1", RoleWorker, t.TempDir()), "node id")
	require.ErrorContains(t, join(addr, tok, "w1", "king", t.TempDir()), "role")
	err = join(addr, tok, "n0", RoleReplay, t.TempDir())
	require.ErrorIs(t, err, replay.ErrInvalid)
	require.ErrorContains(t, err, "taken")

	dir := t.TempDir()
	require.NoError(t, join(addr, tok, "w1", RoleWorker, dir))
	require.NoFileExists(t, filepath.Join(dir, fileCAKey), "workers can't admit")
	require.NoFileExists(t, filepath.Join(dir, fileToken))
	require.NoError(t, join(addr, tok, "w1", RoleWorker, dir), "again: as it is")
	require.ErrorContains(t, join(addr, tok, "w2", RoleWorker, dir), "belongs to")
	otherTok, err := ParseToken(other.token)
	require.NoError(t, err)
	require.ErrorIs(t, join(other.nodes[0].Addr(), otherTok, "w1", RoleWorker, dir), errOtherCluster)

	// A node directory of one cluster, the token of another.
	require.NoError(t, c.nodes[0].Close())
	conf := testConfig(t, c.dirs[0])
	conf.Token, conf.Join = other.token, []string{other.nodes[0].Addr()}
	_, err = Open(testCtx(t), conf)
	require.ErrorIs(t, err, errOtherCluster)
	conf = testConfig(t, c.dirs[0])
	conf.ID = "n7"
	_, err = Open(testCtx(t), conf)
	require.ErrorContains(t, err, "belongs to node")
	conf = testConfig(t, t.TempDir())
	conf.Token = c.token
	_, err = Open(testCtx(t), conf)
	require.ErrorContains(t, err, "token without join")
}

func TestOtherClustersCertificate(t *testing.T) {
	t.Parallel()
	c, other := newTestCluster(t, 1), newTestCluster(t, 1)
	w := other.dial("w1", RoleWorker)

	_, err := Dial(testCtx(t), []string{c.nodes[0].Addr()}, w.id, "")
	require.ErrorIs(t, err, ErrDenied)
	require.ErrorContains(t, err, c.nodes[0].Identity().Cluster())

	// A client that does not care whom it speaks to is refused by the server.
	conf := clientConfig(alpnGRPC, nil)
	conf = w.id.present(conf)
	conn, err := tls.Dial("tcp", c.nodes[0].Addr(), conf)
	if err == nil {
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	require.ErrorContains(t, err, "tls")
}

func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	w := c.dial("w1", RoleWorker)
	ctx := testCtx(t)
	l, err := dial(w.id, c.nodes[0].Addr(), "")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()

	_, err = pb.NewPeerClient(l).Announce(ctx, &pb.AnnounceRequest{})
	require.ErrorIs(t, l.fail(err), ErrDenied)
	st, err := pb.NewPeerClient(l).Replicate(ctx)
	require.NoError(t, err)
	_, err = st.Recv()
	require.ErrorIs(t, l.fail(err), ErrDenied)

	// No certificate: only Join.
	bare := &Identity{ID: w.id.ID, Role: w.id.Role, ca: w.id.ca}
	bare.cert.Store(&tls.Certificate{})
	b, err := dial(bare, c.nodes[0].Addr(), "")
	require.NoError(t, err)
	defer func() { _ = b.Close() }()
	_, err = pb.NewReplayClient(b).Runs(ctx, &pb.Empty{})
	require.ErrorIs(t, b.fail(err), ErrDenied)
	require.ErrorContains(t, b.fail(err), "join with its token")

	// A raft connection without a replay certificate is closed.
	conf, _ := w.id.clientTLS(alpnRaft, "")
	conn, err := tls.Dial("tcp", c.nodes[0].Addr(), conf)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)

	// The wrong node at an address is not taken for the right one.
	p, err := dial(c.nodes[0].Identity(), c.nodes[0].Addr(), "n9")
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	_, err = pb.NewReplayClient(p).Runs(ctx, &pb.Empty{})
	require.ErrorContains(t, p.fail(err), "expected")
}

// The token is in no log, at any level.
func TestTokenIsNotLogged(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var buf bytes.Buffer
	log := slog.New(slog.NewJSONHandler(lockedWriter{&mu, &buf}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := newTestCluster(t, 2, func(_ int, conf *Config) { conf.Logger = log })
	c.dial("w1", RoleWorker)
	tok, err := ParseToken(c.token)
	require.NoError(t, err)
	log.Info("t", "token", tok)
	b, err := json.Marshal(c.nodes[0].clusterStatus())
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, buf.String())
	require.NotContains(t, buf.String()+string(b), tok.secret)
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func TestOccupiedPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	conf := testConfig(t, t.TempDir())
	conf.Listen = ln.Addr().String()
	_, err = Open(testCtx(t), conf)
	require.ErrorContains(t, err, "occupied")
	require.ErrorContains(t, err, ln.Addr().String())
	// Nothing is lost: the same directory starts elsewhere.
	conf.Listen = ""
	n, err := Open(testCtx(t), conf)
	require.NoError(t, err)
	require.NoError(t, n.WaitReady(testCtx(t), 1))
	addr := n.Addr()
	require.NoError(t, n.Close())
	// The port of the first start is kept.
	n, err = Open(testCtx(t), conf)
	require.NoError(t, err)
	require.Equal(t, addr, n.Addr())
	require.NoError(t, n.Close())
	// Unless somebody took it meanwhile.
	ln2, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer func() { _ = ln2.Close() }()
	n, err = Open(testCtx(t), conf)
	require.NoError(t, err)
	require.NotEqual(t, addr, n.Addr())
	require.NoError(t, n.Close())
}

// cases/training.tsv "ports": every listener binds :0 itself and publishes
// what it got.
func TestManyListenersAtOnce(t *testing.T) {
	t.Parallel()
	const n = 32
	id, err := newCluster("n0")
	require.NoError(t, err)
	addrs := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			node, err := newNode(testConfig(t, t.TempDir()))
			if err != nil {
				t.Error(err)
				return
			}
			node.ident, node.id = id, id.ID
			node.book, _ = openBook("")
			if err := node.bind(); err != nil {
				t.Error(err)
				return
			}
			published, err := readAddr(node.cfg.Dir)
			if err != nil || published != node.addr {
				t.Errorf("published %q, bound %q: %v", published, node.addr, err)
			}
			addrs[i] = node.addr
			t.Cleanup(func() { _ = node.Close() })
		})
	}
	wg.Wait()
	seen := make(map[string]bool)
	for _, a := range addrs {
		require.False(t, seen[a], a)
		seen[a] = true
	}
	require.Len(t, seen, n)
}

// cases/training.tsv "hang": a receiver that never answers costs a deadline,
// and the error names it.
func TestHangNamesThePeer(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns sync.WaitGroup
	stop := make(chan struct{})
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { <-stop; _ = c.Close() })
		}
	})
	defer func() { close(stop); _ = ln.Close(); conns.Wait() }()

	id, err := newCluster("n0")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, []string{ln.Addr().String()}, id, "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, replay.ErrUnavailable)
	require.ErrorContains(t, err, ln.Addr().String())
	require.ErrorContains(t, err, "gave up")

	ctx2, cancel2 := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel2()
	_, err = Join(ctx2, JoinConfig{Addrs: []string{ln.Addr().String()}, Token: id.Token(), ID: "w", Role: RoleWorker, Dir: t.TempDir()})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, ln.Addr().String())
}

func TestConfigReportsEveryProblem(t *testing.T) {
	t.Parallel()
	c := Config{ID: "a b", Listen: "nowhere", Heartbeat: time.Millisecond, DiskTimeout: -1, Token: "x"}
	err := c.Validate()
	for _, want := range []string{"dir", "id", `"nowhere"`, "heartbeat", "disk_timeout", "join token"} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, DefaultConfig("d").Validate())
	require.NoError(t, Config{Dir: "d"}.Validate())
	conf := testConfig(t, t.TempDir())
	conf.Listen = ":0"
	_, err = Open(testCtx(t), conf)
	require.ErrorContains(t, err, "advertise")
}
