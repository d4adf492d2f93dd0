// SPDX-License-Identifier: Apache-2.0
// save.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/download.h"
#include "client/json.h"
#include "client/status.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

absl::StatusOr<v1::SaveLayerResponse> SaveHere(Session& session, const std::string& path) {
  CLIENT_ASSIGN_OR_RETURN(const auto file, DownloadFile::Create(path));
  const auto take = [&session, &file = *file](const v1::DownloadLayerResponse& part) {
    const absl::Status added = file.Add(part);
    if (session.progress) session.progress("saving", file.bytes(), part.total_bytes());
    return added;
  };
  CLIENT_RETURN_IF_ERROR(session.client.DownloadLayer(session.name(), take));
  CLIENT_RETURN_IF_ERROR(file->Finish());
  v1::SaveLayerResponse response;
  response.set_bytes(file->bytes());
  return response;
}

absl::StatusOr<v1::SaveLayerResponse> SaveThere(Session& session, const std::string& file) {
  v1::SaveLayerRequest request;
  request.set_name(session.name());
  request.set_file(file);
  return session.client.SaveLayer(request);
}

absl::Status Save(Session& session) {
  const Args& args = session.args;
  if (args.Has("output") == args.Has("server-side")) {
    return UsageError("one of --output or --server-side is needed");
  }
  const std::string file = args.Text(args.Has("output") ? "output" : "server-side");
  CLIENT_ASSIGN_OR_RETURN(const v1::SaveLayerResponse response,
                          args.Has("output") ? SaveHere(session, file) : SaveThere(session, file));
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
  } else {
    session.out = absl::StrCat("saved ", CleanText(session.name()), " in ", CleanText(file), ", ",
                               HumanBytes(response.bytes()), "\n");
  }
  return absl::OkStatus();
}

}  // namespace

Verb SaveVerb() {
  return {.name = "save",
          .arguments = "NAME",
          .summary = "writes a layer to one safetensors file, spec included",
          .min_positional = 1,
          .max_positional = 1,
          .flags = {{"output", "F.safetensors", "a file here"},
                    {"server-side", "F", "a file in the server's --save-dir"}},
          .run = Save};
}

}  // namespace headwise::client
