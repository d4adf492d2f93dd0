// SPDX-License-Identifier: Apache-2.0
#include "client/load/options.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kArrivals[] = {"constant", "poisson"};
constexpr absl::string_view kMethods[] = {"forward", "ablate", "mix"};
constexpr Mix kMethodValues[] = {Mix::kForward, Mix::kAblate, Mix::kMix};
constexpr uint32_t kMaxConnections = 10000;
constexpr uint32_t kMostRepeats = 100;

absl::StatusOr<uint32_t> Between(const Args& args, absl::string_view flag, uint32_t low,
                                 uint32_t high, uint32_t fallback) {
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> number, args.Uint(flag));
  if (!number.has_value()) return fallback;
  if (*number < low || *number > high) {
    return UsageError(
        absl::StrCat("--", flag, ": must be from ", low, " to ", high, "; was ", *number));
  }
  return *number;
}

absl::Status ReadSchedule(const Args& args, LoadOptions* options) {
  options->schedule = args.Text("schedule");
  CLIENT_ASSIGN_OR_RETURN(const RateSchedule rates, RateSchedule::Parse(options->schedule));
  for (const char* other : {"rate", "duration", "find-rate"}) {
    if (args.Has(other)) {
      return UsageError(absl::StrCat("--schedule and --", other, " exclude each other"));
    }
  }
  options->open_loop = true;
  options->rate = rates.mean_rate();
  options->duration = absl::Seconds(rates.seconds());
  return absl::OkStatus();
}

absl::Status ReadLoop(const Args& args, LoadOptions* options) {
  CLIENT_ASSIGN_OR_RETURN(options->duration, args.Time("duration", absl::Seconds(10)));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<double> rate, args.Number("rate"));
  options->find_rate_text = args.Text("find-rate");
  if (args.Has("find-rate")) {
    CLIENT_ASSIGN_OR_RETURN(options->find_rate,
                            ParseThresholds("find-rate", options->find_rate_text));
  }
  options->open_loop = rate.has_value() || args.Has("find-rate");
  if (rate.has_value() && (*rate <= 0 || *rate > RateSchedule::kMaxRate)) {
    return UsageError(absl::StrCat("--rate: must be above 0, at most 1e6; was ", *rate));
  }
  options->rate = rate.value_or(0);
  if (args.Has("schedule")) CLIENT_RETURN_IF_ERROR(ReadSchedule(args, options));
  if (!options->open_loop && args.Has("arrivals")) {
    return UsageError("--arrivals needs --rate, --schedule or --find-rate");
  }
  CLIENT_ASSIGN_OR_RETURN(const size_t arrivals, args.Choice("arrivals", kArrivals, 0));
  options->poisson = arrivals == 1;
  CLIENT_ASSIGN_OR_RETURN(options->concurrency, Between(args, "concurrency", 1, kMaxConnections,
                                                        options->open_loop ? 0 : 1));
  CLIENT_ASSIGN_OR_RETURN(options->repeat, Between(args, "repeat", 1, kMostRepeats, 1));
  if (args.Has("repeat") && args.Has("find-rate")) {
    return UsageError("--find-rate and --repeat exclude each other");
  }
  return absl::OkStatus();
}

absl::Status ReadOutputs(const Args& args, LoadOptions* options) {
  if (args.Has("threshold")) {
    CLIENT_ASSIGN_OR_RETURN(options->thresholds,
                            ParseThresholds("threshold", args.Text("threshold")));
  }
  for (const char* flag : {"json", "html"}) {
    if (args.Has(flag) && args.Text(flag).empty()) {
      return UsageError(absl::StrCat("--", flag, ": must be a file; was empty"));
    }
  }
  options->json = args.Text("json");
  options->html = args.Text("html");
  return absl::OkStatus();
}

absl::Status ReadTargets(const Args& args, LoadOptions* options) {
  options->targets = absl::StrSplit(args.Text("server", "127.0.0.1:8500"), ',');
  for (const std::string& target : options->targets) {
    if (target.empty()) return UsageError("--server: must name HOST:PORT; was empty");
  }
  const auto servers = static_cast<uint32_t>(options->targets.size());
  CLIENT_ASSIGN_OR_RETURN(options->connections,
                          Between(args, "connections", 1, kMaxConnections, servers));
  if (options->connections < servers) {
    return UsageError(absl::StrCat("--connections: must be at least one a server, ", servers,
                                   "; was ", options->connections));
  }
  return absl::OkStatus();
}

}  // namespace

RateSchedule LoadOptions::rates() const {
  // The text was read before, or is empty.
  const absl::StatusOr<RateSchedule> parsed = RateSchedule::Parse(schedule);
  return parsed.ok() ? *parsed : RateSchedule::Constant(rate, absl::ToDoubleSeconds(duration));
}

const std::vector<Flag>& LoadFlags() {
  static const auto* flags = [] {
    auto* list = new std::vector<Flag>{
        {"server", "HOST:PORT[,…]", "one server or several; 127.0.0.1:8500 by default"},
        {"concurrency", "N",
         "closed loop: N callers (default 1); with --rate: at most N in flight"},
        {"rate", "R", "open loop: R calls a second, whatever the server does"},
        {"schedule", "R:TIME,R-R:TIME,…", "open loop in steps and ramps, like 100:10s,100-500:30s"},
        {"find-rate", "p99<20ms[,…]", "search for the largest rate that keeps these bounds"},
        {"arrivals", "constant|poisson", "gaps of the open loop; constant by default"},
        {"duration", "10s", "length of the measured window"},
        {"repeat", "N", "runs one after the other; from 5 on, compare goes by runs"},
        {"connections", "N", "TCP connections; one a server by default"},
        {"client-id", "NAME", "whose share of the server the calls use; this machine's by default"},
        {"priority", "N", "among that client's requests; 0 by default"},
        {"lengths", "fixed:N|uniform:A-B|file:F",
         "tokens of each call; a mix: 3*fixed:16+1*uniform:256-512; fixed:128 by default"},
        {"method", "forward|ablate|mix", "ablate: leave one out; mix: in turn; forward by default"},
        {"warmup", "N", "first N calls, left out of the statistics"},
        {"seed", "N", "of inputs, lengths and gaps; 0 by default"},
        {"timeout", "30s", "longest wait for an answer"},
        {"threshold", "p99<20ms,errors<1%,…", "exit with 3 unless the run keeps these bounds"},
        {"json", "F|-", "write the report as JSON to a file, or to standard output alone"},
        {"html", "F", "write the report as one page: spectrum, time line, split, errors"},
        {"version", "", "the version of this program"},
        {"completion", "", "a completion script for bash"},
        {"reference", "", "every help text, as Markdown"},
        {"help", "", "this text"},
    };
    list->insert(list->end(), SecurityFlags().begin(), SecurityFlags().end());
    return list;
  }();
  return *flags;
}

absl::StatusOr<LoadOptions> ReadLoadOptions(const Args& args) {
  LoadOptions options;
  if (args.positional().empty()) return UsageError("NAME of a layer is missing");
  if (args.positional().size() > 1) {
    return UsageError(absl::StrCat("unexpected argument \"", args.positional()[1], "\""));
  }
  options.layer = args.positional()[0];
  options.layers = absl::StrSplit(options.layer, ',');
  CLIENT_RETURN_IF_ERROR(ReadTargets(args, &options));
  CLIENT_ASSIGN_OR_RETURN(options.timeout, args.Time("timeout", absl::Seconds(30)));
  CLIENT_RETURN_IF_ERROR(ReadLoop(args, &options));
  CLIENT_ASSIGN_OR_RETURN(options.client_id, args.ClientId("client-id"));
  CLIENT_ASSIGN_OR_RETURN(const auto priority, args.Int("priority"));
  options.priority = priority.value_or(0);
  options.lengths = args.Text("lengths", "fixed:128");
  CLIENT_ASSIGN_OR_RETURN(const size_t method, args.Choice("method", kMethods, 0));
  options.mix = kMethodValues[method];
  CLIENT_ASSIGN_OR_RETURN(const auto seed, args.Uint("seed"));
  options.seed = seed.value_or(0);
  CLIENT_ASSIGN_OR_RETURN(const auto warmup, args.Uint("warmup"));
  options.warmup = warmup.value_or(0);
  CLIENT_ASSIGN_OR_RETURN(options.security, ReadSecurity(args));
  CLIENT_RETURN_IF_ERROR(ReadOutputs(args, &options));
  return options;
}

}  // namespace headwise::client
