package task

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/skein-rl/skein/agent/tool"
)

// storeItems are the goods, all plural so that a question's word is the
// argument.
var storeItems = []string{"pens", "cups", "books", "lamps", "balls", "hats", "bags", "keys", "boxes", "fans", "mugs", "maps"}

type storeKind int

const (
	costOfTwo storeKind = iota
	costOfOne
	stockDifference
	leftOfOne // the stock of one item after a sale
	leftOfTwo // the stock of two items together after a sale of each
	storeKinds
)

// storeProblem is one drawn question with the shop behind it.
type storeProblem struct {
	id      string
	kind    storeKind
	items   []string // one or two, different
	counts  []int    // of each item; none for stockDifference
	wording int
	price   map[string]int
	stock   map[string]int // before any sale; at least the largest count
}

func drawStore(rng *rand.Rand) storeProblem {
	p := storeProblem{price: map[string]int{}, stock: map[string]int{}, wording: rng.IntN(2)}
	for _, it := range storeItems {
		p.price[it] = 10 + rng.IntN(90)
		p.stock[it] = 10 + rng.IntN(90)
	}
	order := rng.Perm(len(storeItems))
	x, y := storeItems[order[0]], storeItems[order[1]]
	p.kind = []storeKind{costOfTwo, costOfTwo, costOfTwo, costOfOne, stockDifference, leftOfOne, leftOfTwo, leftOfTwo}[rng.IntN(8)]
	switch p.kind {
	case costOfOne, leftOfOne:
		p.items, p.counts = []string{x}, []int{2 + rng.IntN(8)}
	case costOfTwo, leftOfTwo:
		p.items, p.counts = []string{x, y}, []int{2 + rng.IntN(8), 2 + rng.IntN(8)}
	default:
		p.items = []string{x, y}
		for p.stock[x] <= p.stock[y] {
			p.stock[x], p.stock[y] = 10+rng.IntN(90), 10+rng.IntN(90)
		}
	}
	return p
}

// content is what is asked, whatever the wording and the numbers behind it.
func (p storeProblem) content() string { return fmt.Sprint(p.kind, p.items, p.counts) }

// heldout puts one question in five into the held-out split.
func (p storeProblem) heldout() bool {
	return rngOf(storeVersion, "split", p.content()).IntN(5) == 0
}

var storeWordings = [storeKinds][2]string{
	costOfTwo:       {"Cost of %d %s and %d %s?", "What do %d %s and %d %s cost?"},
	costOfOne:       {"Cost of %d %s?", "What do %d %s cost?"},
	stockDifference: {"How many more %s than %s in stock?", "Stock of %s minus stock of %s?"},
	leftOfOne:       {"Sell %d %s. How many are left?", "Sell %d %s. Stock now?"},
	leftOfTwo:       {"Sell %d %s and %d %s. How many are left in all?", "Sell %d %s and %d %s. Stock of both now?"},
}

func (p storeProblem) question() string {
	var words []any
	for i, it := range p.items {
		if p.counts != nil {
			words = append(words, p.counts[i])
		}
		words = append(words, it)
	}
	return fmt.Sprintf(storeWordings[p.kind][p.wording], words...)
}

// sells says whether the shop is to be changed.
func (p storeProblem) sells() bool { return p.kind == leftOfOne || p.kind == leftOfTwo }

// sales are the asked ones by item; none when the question only looks.
func (p storeProblem) sales() map[string]int {
	out := map[string]int{}
	if p.sells() {
		for i, it := range p.items {
			out[it] = p.counts[i]
		}
	}
	return out
}

// lookup is the tool that shows the numbers asked for.
func (p storeProblem) lookup() string {
	if p.kind == costOfOne || p.kind == costOfTwo {
		return "price"
	}
	return "stock"
}

// calculates says whether the looked-up numbers need a calculation.
func (p storeProblem) calculates() bool { return p.kind != leftOfOne }

// expr is the calculation over looked-up values, one per item.
func (p storeProblem) expr(values []int) string {
	switch p.kind {
	case costOfTwo:
		return fmt.Sprintf("%d*%d+%d*%d", p.counts[0], values[0], p.counts[1], values[1])
	case costOfOne:
		return fmt.Sprintf("%d*%d", p.counts[0], values[0])
	case stockDifference:
		return fmt.Sprintf("%d-%d", values[0], values[1])
	case leftOfTwo:
		return fmt.Sprintf("%d+%d", values[0], values[1])
	default:
		return strconv.Itoa(values[0])
	}
}

// values are what the look-ups must show, after the asked sales.
func (p storeProblem) values() []int {
	sales := p.sales()
	out := make([]int, len(p.items))
	for i, it := range p.items {
		out[i] = p.stock[it] - sales[it]
		if p.lookup() == "price" {
			out[i] = p.price[it]
		}
	}
	return out
}

func (p storeProblem) truth() string { return evaluated(p.expr(p.values())) }

func evaluated(expr string) string {
	v, err := tool.Evaluate(expr)
	if err != nil {
		panic(err) // sums of small products
	}
	return tool.FormatNumber(v)
}
