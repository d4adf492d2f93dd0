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
constexpr double kMaxRate = 1e6;

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

absl::Status ReadLoop(const Args& args, LoadOptions* options) {
  CLIENT_ASSIGN_OR_RETURN(const std::optional<double> rate, args.Number("rate"));
  options->open_loop = rate.has_value();
  if (options->open_loop) {
    if (*rate <= 0 || *rate > kMaxRate) {
      return UsageError(absl::StrCat("--rate: must be above 0, at most 1e6; was ", *rate));
    }
    options->rate = *rate;
  } else if (args.Has("arrivals")) {
    return UsageError("--arrivals needs --rate");
  }
  CLIENT_ASSIGN_OR_RETURN(const size_t arrivals, args.Choice("arrivals", kArrivals, 0));
  options->poisson = arrivals == 1;
  CLIENT_ASSIGN_OR_RETURN(options->concurrency, Between(args, "concurrency", 1, kMaxConnections,
                                                        options->open_loop ? 0 : 1));
  return absl::OkStatus();
}

}  // namespace

const std::vector<Flag>& LoadFlags() {
  static const auto* flags = [] {
    auto* list = new std::vector<Flag>{
        {"server", "HOST:PORT[,…]", "one server or several; 127.0.0.1:8500 by default"},
        {"concurrency", "N",
         "closed loop: N callers (default 1); with --rate: at most N in flight"},
        {"rate", "R", "open loop: R calls a second, whatever the server does"},
        {"arrivals", "constant|poisson", "gaps of the open loop; constant by default"},
        {"duration", "10s", "length of the measured window"},
        {"connections", "N", "TCP connections; 1 by default"},
        {"client-id", "NAME", "whose share of the server the calls use; this machine's by default"},
        {"priority", "N", "among that client's requests; 0 by default"},
        {"lengths", "fixed:N|uniform:A-B|file:F", "tokens of each call; fixed:128 by default"},
        {"method", "forward|ablate|mix", "ablate: leave one out; mix: in turn; forward by default"},
        {"warmup", "N", "first N calls, left out of the statistics"},
        {"seed", "N", "of inputs, lengths and gaps; 0 by default"},
        {"timeout", "30s", "longest wait for an answer"},
        {"json", "F|-", "write the report as JSON to a file, or to standard output alone"},
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
  options.targets = absl::StrSplit(args.Text("server", "127.0.0.1:8500"), ',');
  for (const std::string& target : options.targets) {
    if (target.empty()) return UsageError("--server: must name HOST:PORT; was empty");
  }
  CLIENT_ASSIGN_OR_RETURN(options.timeout, args.Time("timeout", absl::Seconds(30)));
  CLIENT_ASSIGN_OR_RETURN(options.duration, args.Time("duration", absl::Seconds(10)));
  CLIENT_RETURN_IF_ERROR(ReadLoop(args, &options));
  CLIENT_ASSIGN_OR_RETURN(options.connections, Between(args, "connections", 1, kMaxConnections, 1));
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
  options.json = args.Text("json");
  if (args.Has("json") && options.json.empty()) {
    return UsageError("--json: must be a file or -; was empty");
  }
  return options;
}

}  // namespace headwise::client
