package project

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"path/filepath"
	"sort"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

//go:embed report.html.tmpl
var reportTemplate string

// chart is one plot of the report: curves over the learner's steps.
type chart struct {
	Title   string
	Note    string
	Metrics []string // step metrics drawn as lines
	Heldout bool     // draws held-out success as well
}

var charts = []chart{
	{Title: "Reward and held-out success", Note: "Mean reward of the trained groups; greedy success on held-out tasks.", Metrics: []string{rewardMetric}, Heldout: true},
	{Title: "Policy entropy", Note: "Mean entropy of the sampled distribution, in nats per token.", Metrics: []string{"entropy"}},
	{Title: "Staleness", Note: "Token-weighted age of the trained tokens, in policy versions.", Metrics: []string{"staleness/mean", "staleness/max"}},
	{Title: "Engine against learner", Note: "Absolute difference between the behaviour logprob and the learner's, before the update.", Metrics: []string{"logprob_gap/mean_abs", "logprob_gap/same_version_max_abs"}},
	{Title: "Distribution of the difference", Note: "Percentiles of the same difference, in nats.", Metrics: []string{"logprob_gap/p50", "logprob_gap/p99"}},
	{Title: "KL", Note: "From the reference, in nats per token.", Metrics: []string{"kl"}},
	{Title: "Advantages", Note: "Deviation over the trained rollouts or tokens.", Metrics: []string{"advantage/std"}},
	{Title: "Completions", Note: "Mean tokens, and the 90th percentile.", Metrics: []string{"completions/mean_length", "completions/length/p90"}},
	{Title: "Cut off and clipped", Note: "Share of completions cut off, and of tokens outside the clip range.", Metrics: []string{"completions/clipped_ratio", "clip_ratio/region_mean"}},
	{Title: "Tools", Note: "Calls per rollout, and the share that failed.", Metrics: []string{"tools/call_frequency", "tools/failure_frequency"}},
	{Title: "Gradient norm", Note: "Global norm before clipping.", Metrics: []string{"grad_norm"}},
}

// WriteReport writes report.html into dir: the before/after table, the plots
// and the last step's metrics, in one file without scripts or downloads.
func WriteReport(dir string, s Summary, configYAML []byte) error {
	type figure struct {
		Title, Note string
		SVG         template.HTML
	}
	var figures []figure
	for _, c := range charts {
		svg, drawn, err := draw(c, s)
		if err != nil {
			return err
		}
		if drawn {
			figures = append(figures, figure{c.Title, c.Note, template.HTML(svg)}) // our own SVG, no user text in it
		}
	}
	t, err := template.New("report").Parse(reportTemplate)
	if err != nil {
		return fmt.Errorf("project: report template: %w", err)
	}
	var last []string
	if n := len(s.StepsLog); n > 0 {
		for k, v := range s.StepsLog[n-1].Metrics {
			last = append(last, fmt.Sprintf("%s = %.5g", k, v))
		}
		sort.Strings(last)
	}
	base := 0.0
	if s.HeldoutBase != nil {
		base = *s.HeldoutBase
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"S": s, "Base": base, "Figures": figures, "Last": last, "Config": string(configYAML),
		"Change": s.HeldoutAfter - s.HeldoutBefore, "RewardChange": s.RewardLast - s.RewardFirst,
	})
	if err != nil {
		return fmt.Errorf("project: rendering the report: %w", err)
	}
	return writeFile(filepath.Join(dir, "report.html"), out.Bytes())
}

// palette: two colours that stay apart for colour-blind readers (Okabe-Ito).
var palette = []color.Color{
	color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
}

// draw renders a chart as SVG; drawn is false when the run has no such metric.
func draw(c chart, s Summary) (svg string, drawn bool, err error) {
	p := plot.New()
	p.X.Label.Text = "step"
	p.Add(plotter.NewGrid())
	add := func(name string, xys plotter.XYs, i int) error {
		if len(xys) == 0 {
			return nil
		}
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return fmt.Errorf("project: plotting %s: %w", name, err)
		}
		line.Color, points.Color = palette[i%len(palette)], palette[i%len(palette)]
		line.Width = vg.Points(1.5)
		points.Radius = vg.Points(2)
		p.Add(line, points)
		p.Legend.Add(strings.NewReplacer("_", " ", "/", " ").Replace(name), line)
		drawn = true
		return nil
	}
	n := 0
	for _, m := range c.Metrics {
		var xys plotter.XYs
		for _, st := range s.StepsLog {
			if v, ok := st.Metrics[m]; ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
				xys = append(xys, plotter.XY{X: float64(st.Step), Y: v})
			}
		}
		if err := add(m, xys, n); err != nil {
			return "", false, err
		}
		n++
	}
	if c.Heldout {
		var xys plotter.XYs
		for _, e := range s.Evals {
			xys = append(xys, plotter.XY{X: float64(e.Version), Y: e.Success})
		}
		if err := add("held-out success", xys, n); err != nil {
			return "", false, err
		}
		p.Y.Min, p.Y.Max = 0, 1
	}
	if !drawn {
		return "", false, nil
	}
	p.Legend.Top = true
	p.Legend.XOffs, p.Legend.Padding = -vg.Points(8), vg.Points(3)
	canvas := vgsvg.New(16*vg.Centimeter, 8*vg.Centimeter)
	// Room at the edges for tick labels that stand out over the axes.
	p.Draw(vgdraw.Crop(vgdraw.New(canvas), 2*vg.Millimeter, -6*vg.Millimeter, vg.Millimeter, -3*vg.Millimeter))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", false, fmt.Errorf("project: writing the plot %q: %w", c.Title, err)
	}
	// The XML prolog does not belong inside HTML.
	text := b.String()
	if i := strings.Index(text, "<svg"); i > 0 {
		text = text[i:]
	}
	return text, true, nil
}
