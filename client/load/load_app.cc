// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_app.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/completion.h"
#include "client/load/compare.h"
#include "client/load/grpc_transport.h"
#include "client/load/load_json.h"
#include "client/load/load_page.h"
#include "client/load/load_report.h"
#include "client/status.h"
#include "client/text_file.h"
#include "headwise/version.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kProgram = "headwise-load";
constexpr absl::string_view kClearLine = "\r\033[K";
// A run in this many stretches of time, but none shorter than the shortest.
constexpr int64_t kWindows = 40;
constexpr int64_t kShortestWindowNs = 100'000'000;
// A trial of a search is longer than asked where its percentile needs more calls, up to this much.
constexpr double kLongestTrial = 10;

const std::vector<Flag>& CompareFlags() {
  static const auto* flags = new std::vector<Flag>{
      {"force", "", "compare reports of different set-ups, too"},
      {"tolerance", "0.05", "changes up to this share count as none; 0 by default"},
      {"seed", "N", "of the resampling; 0 by default"},
      {"json", "F|-", "write the comparison as JSON to a file, or to standard output alone"},
      {"help", "", "this text"},
  };
  return *flags;
}

std::string CompareHelp() {
  return absl::StrCat(
      "usage: headwise-load compare BEFORE.json AFTER.json [flags]\n\n"
      "Compares two reports of headwise-load: each figure's change with an interval, and a\n"
      "verdict. Reports of different set-ups are refused by name.\n\nflags:\n",
      DescribeFlags(CompareFlags()),
      "\nExit codes: 0 done, 1 refused or unreadable, 2 wrong usage, "
      "3 slower.\n");
}

// What GetLayer says of each layer; one call a layer, before anything is measured.
absl::StatusOr<std::vector<LayerSetup>> AskLayers(const LoadOptions& options) {
  CLIENT_ASSIGN_OR_RETURN(const auto client,
                          Client::Connect(options.targets[0], {.timeout = options.timeout,
                                                               .security = options.security}));
  std::vector<LayerSetup> setup;
  for (const std::string& name : options.layers) {
    v1::GetLayerRequest request;
    request.set_name(name);
    CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails layer, client->GetLayer(request));
    setup.push_back({.name = name,
                     .dtype = v1::DType_Name(layer.dtype()),
                     .kernel = layer.kernel(),
                     .d_model = layer.spec().d_model(),
                     .heads = layer.spec().heads(),
                     .kv_heads = layer.spec().kv_heads()});
  }
  return setup;
}

absl::StatusOr<std::unique_ptr<GrpcTransport>> OpenTransport(const LoadOptions& options,
                                                             const std::vector<LayerSetup>& setup,
                                                             uint32_t max_tokens) {
  GrpcTransport::Settings settings{.targets = options.targets,
                                   .connections = options.connections,
                                   .timeout = options.timeout,
                                   .client_id = options.client_id,
                                   .priority = options.priority,
                                   .layers = {},
                                   .max_tokens = max_tokens,
                                   .seed = options.seed,
                                   .security = options.security};
  for (const LayerSetup& layer : setup) settings.layers.push_back({layer.name, layer.d_model});
  return GrpcTransport::Open(settings);
}

// Sends no more once so many calls missed a bound that the rest can't make up for it.
std::function<bool(const Sample&)> GiveUpOn(const std::vector<Threshold>& bounds, double planned) {
  struct Count {
    Threshold bound;
    uint64_t misses = 0;
  };
  std::vector<Count> counts;
  for (const Threshold& bound : bounds) {
    if (bound.figure == Threshold::Figure::kPercentile) counts.push_back({bound});
  }
  return [counts, planned](const Sample& sample) mutable {
    bool lost = false;
    for (Count& count : counts) {
      count.misses += count.bound.IsMiss(sample) ? 1 : 0;
      lost = lost || count.misses > count.bound.Allowance(planned);
    }
    return lost;
  };
}

// Runs over one transport.
class LoadTest {
 public:
  LoadTest(const LoadOptions& options, Transport* transport, Lengths* lengths, bool watched,
           std::ostream& err)
      : options_(options), transport_(transport), lengths_(lengths), watched_(watched), err_(err) {}

  RunResult Run(const LoadOptions& options, std::function<bool(const Sample&)> give_up = {}) {
    const std::unique_ptr<Arrivals> arrivals = MakeArrivals(options);
    Runner::Settings settings = RunnerSettings(options);
    settings.give_up = std::move(give_up);
    if (watched_) settings.progress = [this](const RunProgress& at) { ShowProgress(at); };
    StartingAt begin(transport_);
    Runner runner(settings, arrivals.get(), lengths_, &begin, MakeRecord(options));
    RunResult run = runner.Run();
    if (watched_) err_ << kClearLine << std::flush;
    return run;
  }

  std::vector<RunResult> Repeat() {
    std::vector<RunResult> runs;
    for (uint32_t i = 0; i < options_.repeat; ++i) runs.push_back(Run(options_));
    return runs;
  }

  // The found rate, with the report of the runs that confirmed it, or of the last trial.
  absl::StatusOr<LoadReport> Find() {
    LoadReport last;
    const auto trial = [&](double rate) -> absl::StatusOr<TrialOutcome> {
      last = Try(rate);
      return TrialOutcome{.met = last.verdict == Verdict::kOk,
                          .limited = last.verdict == Verdict::kGeneratorLimited};
    };
    FindRateSettings settings;
    if (options_.rate > 0) settings.start = options_.rate;
    CLIENT_ASSIGN_OR_RETURN(FoundRate found, FindRate(settings, trial));
    if (found.generator_limited) {
      last.verdict = Verdict::kGeneratorLimited;
    } else if (found.rate == 0 || !found.confirmed) {
      last.verdict = Verdict::kThresholdMissed;
    }
    last.found = std::move(found);
    return last;
  }

 private:
  // A transport whose clock begins now: each run has its own.
  class StartingAt : public Transport {
   public:
    explicit StartingAt(Transport* transport)
        : transport_(transport), begin_ns_(transport->NowNs()) {}
    int64_t NowNs() override { return transport_->NowNs() - begin_ns_; }
    void Start(const Call& call) override { transport_->Start(call); }
    std::optional<Completion> Wait(int64_t until_ns) override {
      const bool never = until_ns == Arrivals::kNever;
      std::optional<Completion> completion =
          transport_->Wait(never ? until_ns : until_ns + begin_ns_);
      if (completion.has_value()) completion->done_ns -= begin_ns_;
      return completion;
    }
    CpuSeconds CpuSoFar() override { return transport_->CpuSoFar(); }

   private:
    Transport* const transport_;
    const int64_t begin_ns_;
  };

  LoadReport Try(double rate) {
    LoadOptions options = options_;
    options.rate = rate;
    options.thresholds.insert(options.thresholds.end(), options_.find_rate.begin(),
                              options_.find_rate.end());
    double calls = rate * absl::ToDoubleSeconds(options.duration);
    for (const Threshold& bound : options.thresholds) {
      if (bound.figure != Threshold::Figure::kPercentile) continue;
      const double needed = 50000.0 / (10000 - bound.per_10000) + 1;
      calls = std::max(calls, std::min(needed, kLongestTrial * calls));
    }
    options.duration = absl::Seconds(calls / rate);
    std::vector<RunResult> runs;
    runs.push_back(Run(options, GiveUpOn(options.thresholds, calls)));
    LoadReport report = MakeReport(options, std::move(runs), 0);
    if (watched_) {
      err_ << absl::StrFormat("%.1f calls/s: %s\n", rate, VerdictName(report.verdict))
           << std::flush;
    }
    return report;
  }

  void ShowProgress(const RunProgress& at) {
    err_ << kClearLine
         << absl::StrFormat("%.1f s: %d sent, %d ok, %d failed, %d in flight", at.elapsed_s,
                            at.sent, at.ok, at.failed, at.sent - at.ok - at.failed)
         << std::flush;
  }

  const LoadOptions& options_;
  Transport* const transport_;
  Lengths* const lengths_;
  const bool watched_;
  std::ostream& err_;
};

absl::StatusOr<LoadReport> Measure(const LoadOptions& options, bool watched, std::ostream& err) {
  CLIENT_ASSIGN_OR_RETURN(Lengths lengths, Lengths::Parse(options.lengths, options.seed));
  CLIENT_ASSIGN_OR_RETURN(const std::vector<LayerSetup> setup, AskLayers(options));
  CLIENT_ASSIGN_OR_RETURN(const auto transport, OpenTransport(options, setup, lengths.max()));
  LoadTest test(options, transport.get(), &lengths, watched, err);
  absl::StatusOr<LoadReport> report =
      options.find_rate.empty() ? MakeReport(options, test.Repeat(), 0) : test.Find();
  CLIENT_RETURN_IF_ERROR(report.status());
  report->setup = setup;
  report->connections_measured = transport->MeasureConnections();
  return report;
}

absl::Status WriteReport(const LoadReport& report, const Terminal& terminal, std::ostream& out) {
  const LoadOptions& options = report.options;
  if (!options.html.empty()) {
    CLIENT_RETURN_IF_ERROR(WriteTextFile("html", options.html, LoadPage(report)));
  }
  if (options.json == "-") {
    out << ReportJson(report) << std::flush;
    return absl::OkStatus();
  }
  if (!options.json.empty()) {
    CLIENT_RETURN_IF_ERROR(WriteTextFile("json", options.json, ReportJson(report)));
  }
  out << ReportText(report, terminal) << std::flush;
  return absl::OkStatus();
}

int ExitCodeFor(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return kExitDone;
    case Verdict::kThresholdMissed:
      return kExitNotMet;
    case Verdict::kGeneratorLimited:
    case Verdict::kFail:
      return kExitFailed;
  }
  return kExitFailed;
}

absl::StatusOr<int> Load(absl::Span<const std::string> words, const Terminal& terminal,
                         bool watched, std::ostream& out, std::ostream& err) {
  CLIENT_ASSIGN_OR_RETURN(const Args args, Args::Parse(words, LoadFlags()));
  if (args.Has("help")) {
    out << LoadHelp();
    return kExitDone;
  }
  if (args.Has("version")) {
    out << kProgram << " " << kVersion << "\n";
    return kExitDone;
  }
  if (args.Has("completion")) {
    out << BashCompletion({.program = std::string(kProgram),
                           .flags = LoadFlags(),
                           .verbs = {{"compare", CompareFlags()}}});
    return kExitDone;
  }
  if (args.Has("reference")) {
    out << MarkdownSection(kProgram, LoadHelp())
        << MarkdownSection("headwise-load compare", CompareHelp());
    return kExitDone;
  }
  CLIENT_ASSIGN_OR_RETURN(const LoadOptions options, ReadLoadOptions(args));
  CLIENT_ASSIGN_OR_RETURN(const LoadReport report, Measure(options, watched, err));
  CLIENT_RETURN_IF_ERROR(WriteReport(report, terminal, out));
  return ExitCodeFor(report.verdict);
}

absl::StatusOr<int> Compare(absl::Span<const std::string> words, const Terminal& terminal,
                            std::ostream& out) {
  CLIENT_ASSIGN_OR_RETURN(const Args args, Args::Parse(words, CompareFlags()));
  if (args.Has("help")) {
    out << CompareHelp();
    return kExitDone;
  }
  if (args.positional().size() != 2) return UsageError("compare: takes BEFORE.json AFTER.json");
  CompareSettings settings{.force = args.Has("force"), .tolerance = 0, .seed = 0};
  CLIENT_ASSIGN_OR_RETURN(const auto tolerance, args.Number("tolerance"));
  settings.tolerance = tolerance.value_or(0);
  if (settings.tolerance < 0) return UsageError("--tolerance: must be at least 0; was less");
  CLIENT_ASSIGN_OR_RETURN(const auto seed, args.Uint("seed"));
  settings.seed = seed.value_or(0);
  CLIENT_ASSIGN_OR_RETURN(const std::string before, ReadTextFile("report", args.positional()[0]));
  CLIENT_ASSIGN_OR_RETURN(const std::string after, ReadTextFile("report", args.positional()[1]));
  CLIENT_ASSIGN_OR_RETURN(const Comparison comparison, CompareReports(before, after, settings));
  const std::string json = args.Text("json");
  if (json == "-") {
    out << ComparisonJson(comparison);
  } else {
    if (!json.empty()) {
      CLIENT_RETURN_IF_ERROR(WriteTextFile("json", json, ComparisonJson(comparison)));
    }
    out << ComparisonText(comparison, terminal);
  }
  out << std::flush;
  return comparison.verdict == ComparisonVerdict::kSlower ? kExitNotMet : kExitDone;
}

}  // namespace

std::unique_ptr<Arrivals> MakeArrivals(const LoadOptions& options) {
  if (options.open_loop) {
    return std::make_unique<OpenArrivals>(options.rates(), options.poisson, options.warmup,
                                          options.seed);
  }
  return std::make_unique<ClosedArrivals>(
      options.concurrency, absl::ToInt64Nanoseconds(options.duration), options.warmup);
}

RunRecord MakeRecord(const LoadOptions& options) {
  std::optional<RateSchedule> rates;
  if (options.open_loop) rates = options.rates();
  return RunRecord(
      std::max(kShortestWindowNs, absl::ToInt64Nanoseconds(options.duration) / kWindows),
      std::move(rates));
}

Runner::Settings RunnerSettings(const LoadOptions& options) {
  Runner::Settings settings;
  settings.mix = options.mix;
  settings.layers = std::max<size_t>(1, options.layers.size());
  settings.connections = options.connections;
  settings.servers = std::max<size_t>(1, options.targets.size());
  settings.warmup = options.warmup;
  settings.max_in_flight = options.open_loop ? options.concurrency : 0;
  return settings;
}

std::string LoadHelp() {
  return absl::StrCat(
      "usage: headwise-load NAME[,NAME…] [flags]\n"
      "       headwise-load compare BEFORE.json AFTER.json [flags]\n\n"
      "Loads a Headwise server with calls to the layer NAME (several take turns). Latency counts\n"
      "from the planned send time of a call; service time, from the actual one, stands beside it.\n"
      "\nflags:\n",
      DescribeFlags(LoadFlags()),
      "\nExit codes: 0 done; 1 failed, no call succeeded, or the generator was the limit; 2 wrong\n"
      "usage; 3 a threshold was missed, no rate was found, or `compare` found it slower.\n");
}

int RunHeadwiseLoad(absl::Span<const std::string> words, const Terminal& terminal, bool watched,
                    std::ostream& out, std::ostream& err) {
  const bool compare = !words.empty() && words[0] == "compare";
  const absl::StatusOr<int> exit_code =
      compare ? Compare(words.subspan(1), terminal, out) : Load(words, terminal, watched, out, err);
  if (exit_code.ok()) return *exit_code;
  const char* hint = IsUsageError(exit_code.status()) ? " (see headwise-load --help)" : "";
  err << ErrorLine(kProgram, exit_code.status()) << hint << "\n";
  return ExitCodeOf(exit_code.status());
}

}  // namespace headwise::client
