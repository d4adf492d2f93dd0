// SPDX-License-Identifier: Apache-2.0
// health, info.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/json.h"
#include "client/status.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

absl::Status Health(Session& session) {
  const std::string name = session.name();
  CLIENT_ASSIGN_OR_RETURN(const std::string status,
                          session.client.Health(name.empty() ? "" : absl::StrCat("layer/", name)));
  const bool serving = status == "SERVING";
  if (session.json) {
    session.out = absl::StrCat("{\"status\":\"", status, "\"}\n");
    session.exit_code = serving ? kExitDone : kExitFailed;
    return absl::OkStatus();
  }
  if (!serving) {
    return absl::UnavailableError(absl::StrCat("health: must be SERVING; was ", status));
  }
  session.out = "SERVING\n";
  return absl::OkStatus();
}

absl::Status Info(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(const v1::ServerInfoResponse info, session.client.ServerInfo());
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(info));
    return absl::OkStatus();
  }
  session.out = CleanText(absl::StrCat("headwise-server ", info.version(), ", oneDNN ",
                                       info.onednn_version(), " on ", info.isa()));
  absl::StrAppend(&session.out, "\n",
                  CleanText(absl::StrCat(info.threads(), " threads (", info.threads_source(),
                                         "), kernels ", absl::StrJoin(info.kernels(), ", "))),
                  "\n");
  if (info.limits().empty()) return absl::OkStatus();
  Table table({{"limit"}, {"value", Table::Align::kRight}, {"unit"}});
  for (const v1::Limit& limit : info.limits()) {
    table.Add({limit.flag(), Grouped(limit.value()), limit.unit()});
  }
  absl::StrAppend(&session.out, "\n", table.Render(session.terminal));
  return absl::OkStatus();
}

}  // namespace

std::vector<Verb> ServerVerbs() {
  return {{.name = "health",
           .arguments = "[NAME]",
           .summary = "asks whether the server, or a layer, is serving (exit 0) or not (exit 1)",
           .min_positional = 0,
           .max_positional = 1,
           .flags = {},
           .run = Health},
          {.name = "info",
           .arguments = "",
           .summary = "the server's version, kernels, threads and limits",
           .flags = {},
           .run = Info}};
}

}  // namespace headwise::client
