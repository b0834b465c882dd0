package replay

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/skein-rl/skein/eventlog"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scripts; read the diff")

// epoch is the clock's start in tests.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// script runs commands against a fold in memory. Each command is a line "verb
// key=value ...", its output follows after "----" up to an empty line:
//
//	at T                                  set the clock to epoch + T
//	create size= per_step= staleness= ttl= attempts= [oversample= duplicate_after= drop=true]
//	finish | tick
//	take worker= n= [id=]                 tickets
//	return worker= [group=]
//	append group= members=a,b [table= id= v= max= status= cause= reward= tokens= attempt= closed=show]
//	lease groups= version= [holder= ttl=]
//	extend lease= ttl= | release lease= [drop=]
//	commit step= version= lease= [prev= ckpt= logs= groups=]
//	eval version= from= count= | evalstatus version=
//	status | latest | scan table= [after= limit=] | step n=
//
// and those of table_script_test.go.
type script struct {
	kv   KV
	now  time.Time
	last *Lease
	gs   uint32
	log  [][]byte // commands, encoded
}

func newScript() *script { return &script{kv: NewMemKV(), now: epoch} }

type args map[string]string

func (a args) str(k, def string) string {
	if v, ok := a[k]; ok {
		return v
	}
	return def
}

func (a args) num(k string, def uint64) uint64 {
	v, ok := a[k]
	if !ok {
		return def
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (a args) dur(k string, def time.Duration) time.Duration {
	v, ok := a[k]
	if !ok {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		panic(err)
	}
	return d
}

func (s *script) run(line string) string {
	f := strings.Fields(line)
	a := args{}
	for _, kv := range f[1:] {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			k, v = "", kv
		}
		a[k] = v
	}
	out, err := s.exec(f[0], a)
	if err != nil {
		out += "error: " + err.Error() + "\n"
	}
	if out == "" {
		out = "ok\n"
	}
	return out
}

// apply sends the command through its codec, as raft would.
func (s *script) apply(c Command) (Result, error) {
	b, err := EncodeCommand(c)
	if err != nil {
		return Result{}, err
	}
	c, err = DecodeCommand(b)
	if err != nil {
		return Result{}, err
	}
	s.log = append(s.log, b)
	res, err := Apply(s.kv, c)
	if err == nil {
		err = res.Err
	}
	return res, err
}

func (s *script) exec(verb string, a args) (string, error) {
	var b strings.Builder
	switch verb {
	case "at":
		s.now = epoch.Add(a.dur("", 0))
		return "", nil
	case "create":
		size := uint32(a.num("size", 2))
		_, err := s.apply(CreateRunCmd{s.now, RunSpec{Run: "r", GroupSize: size, GroupsPerStep: uint32(a.num("per_step", 2)),
			MaxStaleness: a.num("staleness", 0), TicketTTL: a.dur("ttl", time.Minute), MaxAttempts: uint32(a.num("attempts", 2)),
			Config:     []byte(a.str("config", "")),
			Stragglers: Stragglers{Oversample: uint32(a.num("oversample", 0)), DuplicateAfter: a.dur("duplicate_after", 0), Drop: a.str("drop", "") == "true"}}})
		size += uint32(a.num("oversample", 0))
		if err == nil {
			s.gs = size
		}
		return "", err
	case "finish":
		_, err := s.apply(FinishRunCmd{s.now, "r"})
		return "", err
	case "tick":
		_, err := s.apply(TickCmd{s.now})
		return "", err
	case "take":
		res, err := s.apply(TakeTicketsCmd{s.now, "r", a.str("worker", "w"), int(a.num("n", 1)), a.str("id", "")})
		for _, t := range res.Tickets {
			fmt.Fprintf(&b, "%s index=%d size=%d attempt=%d version=%d greedy=%v expires=%v done=%v\n",
				t.Group, t.Index, t.GroupSize, t.Attempt, t.Version, t.Greedy, t.Expires.Sub(epoch), t.Done)
		}
		if b.Len() == 0 && err == nil {
			b.WriteString("no tickets\n")
		}
		return b.String(), err
	case "return":
		_, err := s.apply(ReturnTicketCmd{s.now, "r", a.str("group", ""), a.str("worker", "w")})
		return "", err
	case "append":
		var items []Item
		for _, m := range strings.Split(a.str("members", "0"), ",") {
			items = append(items, s.item(a, m))
		}
		res, err := s.apply(AppendItemsCmd{s.now, items})
		for i, r := range res.Append {
			switch {
			case r.Rejected != "":
				fmt.Fprintf(&b, "%s rejected: %s\n", items[i].LogID, r.Rejected)
			case r.Duplicate:
				fmt.Fprintf(&b, "%s duplicate\n", items[i].LogID)
			case r.Busy != "":
				fmt.Fprintf(&b, "%s busy: %s\n", items[i].LogID, r.Busy)
			default:
				fmt.Fprintf(&b, "%s accepted\n", items[i].LogID)
			}
			if r.Closed && a.str("closed", "") != "" {
				fmt.Fprintf(&b, "  closed\n")
			}
		}
		return b.String(), err
	case "lease":
		res, err := s.apply(AcquireLeaseCmd{s.now, LeaseRequest{Run: "r", Holder: a.str("holder", "learner"),
			Table: a.str("table", ""), AtLeast: int(a.num("atleast", 0)),
			Groups: int(a.num("groups", 1)), LearnerVersion: a.num("version", 0), TTL: a.dur("ttl", time.Minute)}})
		if err != nil {
			return "", err
		}
		if res.Lease == nil && a.str("table", "") != "" {
			return "blocked: " + res.Blocked + "\n", nil
		}
		if res.Lease == nil {
			return "not enough groups\n", nil
		}
		s.last = res.Lease
		fmt.Fprintf(&b, "lease %d until %v\n", res.Lease.ID, res.Lease.Expires.Sub(epoch))
		for _, g := range res.Lease.Groups {
			fmt.Fprintf(&b, "  %s index=%d:", g.Group, g.Index)
			if a.str("table", "") != "" {
				fmt.Fprintf(&b, " p=%.4g priority=%g sampled=%d", g.Probability, g.Priority, g.TimesSampled)
			}
			for _, it := range g.Items {
				fmt.Fprintf(&b, " %d=%s", it.Member, it.LogID)
			}
			b.WriteString("\n")
		}
		return b.String(), nil
	case "extend":
		_, err := s.apply(ExtendLeaseCmd{s.now, "r", a.num("lease", 1), a.dur("ttl", time.Minute)})
		return "", err
	case "release":
		_, err := s.apply(ReleaseLeaseCmd{s.now, "r", a.num("lease", 1), a.str("drop", "")})
		return "", err
	case "commit":
		step := StepRecord{Run: "r", Step: a.num("step", 1), Version: a.num("version", 1), Lease: a.num("lease", 1),
			PrevCheckpoint: a.str("prev", ""), Checkpoint: a.str("ckpt", "c"+a.str("step", "1")), Adapter: "a" + a.str("version", "1"),
			Metrics: map[string]float64{"loss": 1, "kl": 2}}
		if s.last != nil && step.Lease != 0 {
			for _, g := range s.last.Groups {
				step.Groups = append(step.Groups, g.Group)
				for _, it := range g.Items {
					if it.Tokens > 0 {
						step.LogIDs = append(step.LogIDs, it.LogID)
					}
				}
			}
		}
		if logs, ok := a["logs"]; ok {
			step.LogIDs = strings.Split(logs, ",")
		}
		if groups, ok := a["groups"]; ok {
			step.Groups = strings.Split(groups, ",")
		}
		_, err := s.apply(CommitStepCmd{s.now, step})
		return "", err
	case "eval":
		_, err := s.apply(RequestEvalCmd{s.now, EvalRequest{Run: "r", Version: a.num("version", 0), From: a.num("from", 0), Count: uint32(a.num("count", 1))}})
		return "", err
	}
	if out, err, ok := s.tableVerb(verb, a); ok {
		return out, err
	}
	return s.query(verb, a)
}

func (s *script) item(a args, member string) Item {
	m, err := strconv.ParseUint(member, 10, 32)
	if err != nil {
		panic(err)
	}
	table := a.str("table", "train")
	group := a.str("group", "0")
	prefix := ""
	if table != "train" && table != "eval" {
		prefix = table + "."
	}
	id := a.str("id", prefix+fmt.Sprintf("%s.%s.%s", strings.ReplaceAll(group, "/", "."), member, a.str("attempt", "1")))
	if _, err := strconv.ParseUint(group, 10, 64); err == nil {
		group = "r/" + table + "/" + group
	}
	size := uint64(s.gs)
	if table == "eval" {
		size = 1
		if g, v := a.str("group", "0"), a.str("v", "0"); !strings.Contains(g, "/") {
			group = "r/eval/" + v + "/" + g
		}
	}
	status := map[string]eventlog.Status{"ok": eventlog.OK, "truncated": eventlog.Truncated, "failed": eventlog.Failed, "timeout": eventlog.TimedOut}[a.str("status", "ok")]
	cause := ""
	tokens := a.num("tokens", 7)
	if status == eventlog.Failed || status == eventlog.TimedOut {
		cause = a.str("cause", "tool:boom")
		tokens = a.num("tokens", 0)
	}
	it := Item{LogID: id, Run: "r", Table: table, Group: group, Member: uint32(m), GroupSize: uint32(a.num("size", size)),
		Attempt: uint32(a.num("attempt", 1)), Worker: "w", Status: uint8(status), Cause: cause, MinVersion: a.num("v", 0),
		Tokens: uint32(tokens), Digest: "d:" + id, Size: 10, Created: s.now}
	it.MaxVersion = a.num("max", it.MinVersion)
	v, ok := a["reward"]
	if list, many := a["rewards"]; many {
		v, ok = strings.Split(list, ",")[m], true
	}
	if task, has := a["task"]; has {
		it.Task = task
	}
	if digest, has := a["digest"]; has {
		it.Digest = digest
	}
	it.Source, it.Size = a.str("source", ""), uint32(a.num("bytes", 10))
	if ok && v != "-" {
		it.HasReward = true
		if it.Reward, err = strconv.ParseFloat(v, 64); err != nil {
			panic(err)
		}
	}
	return it
}

func (s *script) query(verb string, a args) (string, error) {
	var b strings.Builder
	switch verb {
	case "status":
		st, err := Status(s.kv, "r")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "version=%d running=%d ready=%d leased=%d consumed=%d dropped=%d%v shrunk=%d\n", st.Latest.Version,
			st.RunningGroups, st.ReadyGroups, st.LeasedGroups, st.ConsumedGroups, st.DroppedGroups, sorted(st.DropReasons), st.ShrunkGroups)
		fmt.Fprintf(&b, "appended=%d duplicates=%d late=%d rejected=%d failed=%d%v staleness=%v finished=%v\n", st.Appended,
			st.Duplicates, st.LateLogs, st.RejectedLogs, st.FailedRollouts, sorted(st.FailureReasons), st.StalenessCounts, st.Finished)
	case "latest":
		p, err := Latest(s.kv, "r")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "version=%d adapter=%q step=%d\n", p.Version, p.Adapter, p.Step)
	case "step":
		st, err := Step(s.kv, "r", a.num("n", 1))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "version=%d lease=%d logs=%v groups=%v %s -> %s, %s, metrics=%v at %v\n", st.Version, st.Lease, st.LogIDs,
			st.Groups, st.PrevCheckpoint, st.Checkpoint, st.Adapter, st.Metrics, st.Committed.Sub(epoch))
	case "evalstatus":
		st, err := EvalOf(s.kv, "r", a.num("version", 0))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "requested=%d done=%d failed=%d scored=%d mean=%.3f success=%.3f logs=", st.Requested, st.Done, st.Failed, st.Scored, st.MeanReward, st.Success)
		for _, it := range st.Items {
			fmt.Fprintf(&b, " %s", it.LogID)
		}
		b.WriteString("\n")
	case "scan":
		items, next, err := ScanItems(s.kv, "r", a.str("table", "train"), a.str("after", ""), int(a.num("limit", 100)))
		for _, it := range items {
			fmt.Fprintf(&b, "%s ", it.LogID)
		}
		fmt.Fprintf(&b, "next=%q\n", next)
		return b.String(), err
	default:
		return "", errors.New("unknown verb " + verb)
	}
	return b.String(), nil
}

func sorted(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "%s:%d", k, m[k])
	}
	return "[" + b.String() + "]"
}

// TestScripts runs testdata/fold: every file is a story of one run.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/fold/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			in, err := os.ReadFile(file)
			require.NoError(t, err)
			s := newScript()
			var got strings.Builder
			lines := strings.Split(string(in), "\n")
			for i := 0; i < len(lines); i++ {
				line := lines[i]
				if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
					got.WriteString(line)
					if i < len(lines)-1 {
						got.WriteString("\n")
					}
					continue
				}
				fmt.Fprintf(&got, "%s\n----\n%s", line, s.run(line))
				// Skip the old output up to the empty line.
				if i+1 < len(lines) && lines[i+1] == "----" {
					for i+1 < len(lines) && lines[i+1] != "" {
						i++
					}
				}
			}
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
				return
			}
			if d := cmp.Diff(string(in), got.String()); d != "" {
				t.Errorf("-want +got (run with -update and read the diff):\n%s", d)
			}
		})
	}
}
