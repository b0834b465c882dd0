package skein_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/skein-rl/skein/"

// ban forbids an import to every room but the ones it is at home in.
type ban struct {
	imports string // prefix of the import path
	homes   []string
	reason  string
}

// bans on third-party libraries: each heavy one has one home, so that
// replacing it touches one room.
var bans = []ban{
	{"github.com/hashicorp/raft", []string{"cluster"}, "consensus has one home; everything else sees replay.Store"},
	{"github.com/dgraph-io/badger", []string{"replay"}, "the index and fold state are replay's business"},
	{"github.com/minio/", []string{"replay"}, "object stores are targets of backups only"},
	{"github.com/gomlx/", []string{"model/xla", "learner"}, "device programs live in model/xla; the rest speaks model.Backend"},
	{"github.com/asynkron/protoactor-go", []string{"actors"}, "actors are thin shells; logic must be testable without them"},
	{"google.golang.org/grpc", []string{"cluster"}, "wire services live in cluster; the rest takes interfaces"},
	{"github.com/spf13/cobra", []string{"cmd"}, "flags and wiring only at the edge"},
	{"gonum.org/v1/plot", []string{"project"}, "plots belong to reports"},
}

// layers of DESIGN.md, lowest first. A room imports only lower layers, itself,
// and the siblings listed in siblings.
var layers = map[string]int{
	"eventlog": 0, "internal": 0, "recipes": 0, // recipes: embedded files only
	"replay": 1, "model": 1, "agent": 1, "reward": 1,
	"rollout": 2, "learner": 2, simulation: 2,
	"cluster": 3, "actors": 3, "project": 3,
	"serve": 4, "bench": 4, "examples": 4,
	"cmd": 5, // joins all others
}

// simulation is a room of its own: it runs replay's fold in virtual time, which
// nothing else under internal may know of.
const simulation = "internal/sim"

var siblings = map[string][]string{
	"reward":  {"agent"},
	"project": {"cluster", "actors"}, // the façade joins the rooms below it
}

// never: pairs that the layers would allow and the design forbids.
var never = []struct{ from, to, reason string }{
	{"learner", "rollout", "the learner reads logs from the store; how they came to be is not its business"},
	{"rollout", "learner", "workers must run on machines that never train"},
	{"eventlog", "", "the contract is pure: it imports nothing of ours"},
}

func TestImports(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); p != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "runs") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		dir := path.Dir(filepath.ToSlash(p))
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			seen++
			if why := forbidden(dir, strings.Trim(imp.Path.Value, `"`), strings.HasSuffix(p, "_test.go")); why != "" {
				t.Errorf("%s imports %s: %s", p, imp.Path.Value, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Fatalf("looked at %d imports only: the walk is broken", seen)
	}
}

// forbidden says why dir may not import the package, or "".
func forbidden(dir, imported string, test bool) string {
	for _, b := range bans {
		if strings.HasPrefix(imported, b.imports) && !within(dir, b.homes) {
			return b.reason
		}
	}
	target, ours := strings.CutPrefix(imported, module)
	if !ours || dir == "." {
		return ""
	}
	from, to := room(dir), room(target)
	if from == to {
		return ""
	}
	for _, n := range never {
		if n.from == from && (n.to == to || n.to == "") {
			return n.reason
		}
	}
	if test {
		return "" // a test may bring a real neighbour instead of a fake
	}
	lf, okf := layers[from]
	lt, okt := layers[to]
	switch {
	case !okf:
		return "room " + from + " is not on the map: add it to layers with its layer"
	case !okt:
		return "room " + to + " is not on the map: add it to layers with its layer"
	case lt < lf || within(to, siblings[from]):
		return ""
	}
	return "a room imports only rooms of lower layers (docs/concepts.md)"
}

func room(dir string) string {
	if within(dir, []string{simulation}) {
		return simulation
	}
	first, _, _ := strings.Cut(dir, "/")
	return first
}

func within(dir string, homes []string) bool {
	for _, h := range homes {
		if dir == h || strings.HasPrefix(dir, h+"/") {
			return true
		}
	}
	return false
}

func TestForbiddenCanFail(t *testing.T) {
	for _, c := range []struct {
		dir, imported string
		bad           bool
	}{
		{"learner", "github.com/dgraph-io/badger/v4", true},
		{"replay", "github.com/dgraph-io/badger/v4", false},
		{"learner", module + "rollout", true},
		{"rollout/task", module + "learner/loss", true},
		{"eventlog", module + "internal/clock", true},
		{"replay", module + "cluster", true},
		{"cluster", module + "replay", false},
		{"internal/sim", module + "replay", false},
		{"internal/clock", module + "replay", true},
		{"replay", module + "internal/sim", true},
		{"newroom", module + "replay", true},
	} {
		if got := forbidden(c.dir, c.imported, false); (got != "") != c.bad {
			t.Errorf("%s -> %s: %q", c.dir, c.imported, got)
		}
	}
}
