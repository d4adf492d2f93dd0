// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_app.h"

#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/load/grpc_transport.h"
#include "client/load/load_report.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kProgram = "headwise-load";
constexpr absl::string_view kClearLine = "\r\033[K";

std::string Help() {
  return absl::StrCat(
      "usage: headwise-load NAME [flags]\n\n"
      "Loads a Headwise server with calls to the layer NAME. Latency counts from the planned send\n"
      "time of a call; service time, from the actual one, stands beside it.\n\nflags:\n",
      DescribeFlags(LoadFlags()),
      "\nExit codes: 0 done, 1 failed or no call succeeded, 2 wrong usage.\n");
}

// The width of the layer's input; one call, before anything is measured.
absl::StatusOr<uint32_t> AskWidth(const LoadOptions& options) {
  CLIENT_ASSIGN_OR_RETURN(const auto client,
                          Client::Connect(options.targets[0], {.timeout = options.timeout,
                                                               .security = options.security}));
  v1::GetLayerRequest request;
  request.set_name(options.layer);
  CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails layer, client->GetLayer(request));
  return layer.spec().d_model();
}

Runner::Settings RunnerSettings(const LoadOptions& options, bool watched, std::ostream& err) {
  Runner::Settings settings;
  settings.mix = options.mix;
  settings.warmup = options.warmup;
  settings.max_in_flight = options.open_loop ? options.concurrency : 0;
  if (watched) {
    settings.progress = [&err](const RunProgress& at) {
      err << kClearLine
          << absl::StrFormat("%.1f s: %d sent, %d ok, %d failed, %d in flight", at.elapsed_s,
                             at.sent, at.ok, at.failed, at.sent - at.ok - at.failed)
          << std::flush;
    };
  }
  return settings;
}

absl::StatusOr<LoadReport> Measure(const LoadOptions& options, bool watched, std::ostream& err) {
  CLIENT_ASSIGN_OR_RETURN(Lengths lengths, Lengths::Parse(options.lengths, options.seed));
  CLIENT_ASSIGN_OR_RETURN(const uint32_t d_model, AskWidth(options));
  CLIENT_ASSIGN_OR_RETURN(const auto transport,
                          GrpcTransport::Open({.targets = options.targets,
                                               .connections = options.connections,
                                               .timeout = options.timeout,
                                               .client_id = options.client_id,
                                               .priority = options.priority,
                                               .layer = options.layer,
                                               .d_model = d_model,
                                               .max_tokens = lengths.max(),
                                               .seed = options.seed,
                                               .security = options.security}));
  const std::unique_ptr<Arrivals> arrivals = MakeArrivals(options);
  Runner runner(RunnerSettings(options, watched, err), arrivals.get(), &lengths, transport.get());
  const RunResult run = runner.Run();
  if (watched) err << kClearLine << std::flush;
  return MakeReport(options, run, transport->MeasureConnections());
}

absl::Status WriteReport(const LoadReport& report, const Terminal& terminal, std::ostream& out) {
  const std::string& file = report.options.json;
  if (file == "-") {
    out << ReportJson(report) << std::flush;
    return absl::OkStatus();
  }
  if (!file.empty()) {
    std::ofstream stream(file, std::ios::binary | std::ios::trunc);
    stream << ReportJson(report) << std::flush;
    if (!stream) {
      return absl::PermissionDeniedError(absl::StrCat("json: must be writable; was ", file));
    }
  }
  out << ReportText(report, terminal) << std::flush;
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Arrivals> MakeArrivals(const LoadOptions& options) {
  const int64_t duration_ns = absl::ToInt64Nanoseconds(options.duration);
  if (options.open_loop) {
    return std::make_unique<OpenArrivals>(options.rate, options.poisson, duration_ns,
                                          options.warmup, options.seed);
  }
  return std::make_unique<ClosedArrivals>(options.concurrency, duration_ns, options.warmup);
}

int RunHeadwiseLoad(absl::Span<const std::string> words, const Terminal& terminal, bool watched,
                    std::ostream& out, std::ostream& err) {
  const auto fail = [&err](const absl::Status& status) {
    const char* hint = IsUsageError(status) ? " (see headwise-load --help)" : "";
    err << ErrorLine(kProgram, status) << hint << "\n";
    return ExitCodeOf(status);
  };
  const absl::StatusOr<Args> args = Args::Parse(words, LoadFlags());
  if (!args.ok()) return fail(args.status());
  if (args->Has("help")) {
    out << Help();
    return kExitDone;
  }
  const absl::StatusOr<LoadOptions> options = ReadLoadOptions(*args);
  if (!options.ok()) return fail(options.status());
  const absl::StatusOr<LoadReport> report = Measure(*options, watched, err);
  if (!report.ok()) return fail(report.status());
  const absl::Status written = WriteReport(*report, terminal, out);
  if (!written.ok()) return fail(written);
  return report->ok == 0 ? kExitFailed : kExitDone;
}

}  // namespace headwise::client
