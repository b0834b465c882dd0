package task

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/reward"
	"github.com/skein-rl/skein/rollout"
)

var gsm8kOptions = []string{"dir", "train", "heldout"}

const gsm8kSystem = "Solve the problem step by step. Use the calculator for every calculation. End with a line '#### <number>'."

// GSM8K is grade-school mathematics (Cobbe et al. 2021, arXiv:2110.14168) with a
// calculator. A task scores 1 when the number after the last "####" of the final
// text equals the reference exactly, else 0.
type GSM8K struct {
	train, heldout []gsmRow
	identity       string
}

type gsmRow struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
	number   json.RawMessage
}

func openGSM8K(o Options) (*GSM8K, error) {
	train, heldout := o["train"], o["heldout"]
	if dir := o["dir"]; dir != "" {
		if train == "" {
			train = filepath.Join(dir, "train.jsonl")
		}
		if heldout == "" {
			heldout = filepath.Join(dir, "test.jsonl")
		}
	}
	if train == "" || heldout == "" {
		return nil, errors.New("no data; set option dir to a folder with train.jsonl and test.jsonl, or options train and heldout to files")
	}
	return OpenGSM8K(train, heldout)
}

// OpenGSM8K reads the two jsonl files. Errors name file and line: a row that is
// not JSON, has no question or no numeric answer after "####", or a held-out
// question that is also in the training file.
func OpenGSM8K(train, heldout string) (*GSM8K, error) {
	g := &GSM8K{}
	seen := map[string]string{}
	var parts []string
	for _, f := range []struct {
		path string
		rows *[]gsmRow
	}{{train, &g.train}, {heldout, &g.heldout}} {
		rows, err := readGSM(f.path)
		if err != nil {
			return nil, err
		}
		for i, r := range rows {
			key := strings.Join(strings.Fields(r.Question), " ")
			if other, dup := seen[key]; dup && other != f.path {
				return nil, fmt.Errorf("%s row %d is also in %s; held-out questions must not be trained on", f.path, i+1, other)
			}
			seen[key] = f.path
			parts = append(parts, r.Question, r.Answer)
		}
		parts = append(parts, "end of split")
		*f.rows = rows
	}
	g.identity = "gsm8k:" + digest(parts...)
	return g, nil
}

func readGSM(path string) ([]gsmRow, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; see the documentation for where to get the data", err)
	}
	defer f.Close()
	var rows []gsmRow
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for line := 1; sc.Scan(); line++ {
		if len(strings.TrimSpace(sc.Text())) == 0 {
			continue
		}
		var r gsmRow
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, line, err)
		}
		n, ok := reward.MarkedNumber(r.Answer)
		if r.Question == "" || !ok {
			return nil, fmt.Errorf("%s:%d: need a question and an answer that ends in '#### <number>'", path, line)
		}
		r.number, _ = json.Marshal(n.RatString())
		if !n.IsInt() {
			r.number, _ = json.Marshal(n.FloatString(12))
		}
		rows = append(rows, r)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: no rows", path)
	}
	return rows, nil
}

// Name implements rollout.Source.
func (g *GSM8K) Name() string { return "gsm8k" }

// Identity implements Identified.
func (g *GSM8K) Identity() string { return g.identity }

// HeldoutSize implements rollout.Source.
func (g *GSM8K) HeldoutSize() int { return len(g.heldout) }

// TrainSize implements Sized.
func (g *GSM8K) TrainSize() int { return len(g.train) }

// Difficulty implements Graded: the calculations that the reference solution marks.
func (g *GSM8K) Difficulty(i uint64) (float64, error) {
	return float64(len(annotation.FindAllString(g.train[i%uint64(len(g.train))].Answer, -1))), nil
}

// Train implements rollout.Source. The stream starts over after the last row.
func (g *GSM8K) Train(i uint64) (rollout.Task, error) {
	n := i % uint64(len(g.train))
	return g.train[n].task(fmt.Sprintf("train/%d", n))
}

// Heldout implements rollout.Source.
func (g *GSM8K) Heldout(i uint64) (rollout.Task, error) {
	if i >= uint64(len(g.heldout)) {
		return rollout.Task{}, fmt.Errorf("task gsm8k: held-out index %d; there are %d", i, len(g.heldout))
	}
	return g.heldout[i].task(fmt.Sprintf("heldout/%d", i))
}

func (r gsmRow) task(id string) (rollout.Task, error) {
	scorer, err := reward.Open("numeric_match")
	if err != nil {
		return rollout.Task{}, err
	}
	reg, err := tool.NewRegistry(tool.Calculator("calculator"))
	if err != nil {
		return rollout.Task{}, err
	}
	return rollout.Task{
		Source: "gsm8k", ID: id, System: gsm8kSystem, User: r.Question,
		Tools:  reg.Specs(),
		NewEnv: func() tool.Env { return reg }, // stateless
		Score: func(ep rollout.Episode) (float64, error) {
			if !strings.Contains(ep.Final, "####") {
				return 0, nil
			}
			return scorer.Score(reward.Sample{
				Calls: ep.Calls, Results: ep.Results, Malformed: ep.Malformed,
				Final: ep.Final, Truncated: ep.Truncated, Answer: r.number,
			})
		},
		Demo: r.demo(),
	}, nil
}

// annotation is GSM8K's own calculator mark: "<<48/2=24>>".
var annotation = regexp.MustCompile(`<<([^<>=]*)=([^<>]*)>>`)

// demo makes one calculator call for each annotated calculation that the
// calculator understands, then the reference's reasoning without the marks.
func (r gsmRow) demo() []rollout.Turn {
	var turns []rollout.Turn
	for _, m := range annotation.FindAllStringSubmatch(r.Answer, -1) {
		if _, err := tool.Evaluate(m[1]); err != nil {
			continue
		}
		args, _ := json.Marshal(map[string]string{"expr": m[1]})
		turns = append(turns, rollout.Turn{Calls: []tool.Call{{Name: "calculator", Arguments: args}}})
	}
	return append(turns, rollout.Turn{Text: strings.TrimSpace(annotation.ReplaceAllString(r.Answer, ""))})
}
