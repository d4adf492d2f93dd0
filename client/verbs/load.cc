// SPDX-License-Identifier: Apache-2.0
// load, unload.
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/json.h"
#include "client/status.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kDTypes[] = {"f32", "bf16", "int8"};
constexpr v1::DType kDTypeValues[] = {v1::F32, v1::BF16, v1::INT8};
constexpr uint64_t kMaxSpecBytes = 64 << 20;

// Where the layer comes from: exactly one of these flags.
constexpr std::array<absl::string_view, 4> kSources = {"checkpoint", "upload", "layer-file",
                                                       "spec"};

absl::Status CheckGrammar(const Args& args) {
  int sources = 0;
  for (absl::string_view source : kSources) sources += args.Has(source) ? 1 : 0;
  if (sources != 1) {
    return UsageError("one of --checkpoint, --upload, --layer-file or --spec is needed");
  }
  const bool from_checkpoint = args.Has("checkpoint") || args.Has("upload");
  if (from_checkpoint && !args.Has("layer")) return UsageError("--layer is missing");
  if (!from_checkpoint && args.Has("layer")) {
    return UsageError("--layer goes with --checkpoint or --upload");
  }
  if (args.Has("spec") != args.Has("weights")) {
    return UsageError("--spec and --weights go together");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::LoadLayerResponse> LoadFromRepository(Session& session,
                                                         const UploadTarget& target) {
  v1::LoadLayerRequest request;
  request.set_name(target.name);
  request.set_checkpoint(session.args.Text("checkpoint"));
  request.set_layer(session.args.Text("layer"));
  request.set_dtype(target.dtype);
  request.set_replace(target.replace);
  return session.client.LoadLayer(request);
}

absl::StatusOr<v1::LoadLayerResponse> LoadFrom(Session& session, const UploadTarget& target) {
  const Args& args = session.args;
  if (args.Has("checkpoint")) return LoadFromRepository(session, target);
  if (args.Has("upload")) {
    return session.client.UploadCheckpointLayer(args.Text("upload"), target, args.Text("layer"),
                                                session.progress);
  }
  if (args.Has("layer-file")) {
    return session.client.UploadSavedLayer(args.Text("layer-file"), target, session.progress);
  }
  CLIENT_ASSIGN_OR_RETURN(const std::string spec, ReadTextFile(args.Text("spec"), kMaxSpecBytes));
  return session.client.UploadSpecLayer(spec, args.Text("weights"), target, session.progress);
}

std::string Describe(const v1::LayerSummary& layer) {
  return absl::StrCat(CleanText(layer.name()), " version ", layer.version(), ": ",
                      CleanText(layer.family()), ", ", v1::DType_Name(layer.dtype()), ", D ",
                      layer.d_model(), ", ", layer.heads(), " heads (", layer.kv_heads(),
                      " key/value), ", HumanBytes(layer.weight_bytes()), "\n");
}

absl::Status Load(Session& session) {
  CLIENT_RETURN_IF_ERROR(CheckGrammar(session.args));
  CLIENT_ASSIGN_OR_RETURN(const size_t dtype, session.args.Choice("dtype", kDTypes, 0));
  const UploadTarget target = {session.name(), kDTypeValues[dtype], session.args.Has("replace")};
  CLIENT_ASSIGN_OR_RETURN(const v1::LoadLayerResponse response, LoadFrom(session, target));
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
  } else {
    session.out = absl::StrCat("loaded ", Describe(response.layer()));
  }
  return absl::OkStatus();
}

absl::Status Unload(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(const v1::UnloadLayerResponse response,
                          session.client.UnloadLayer(session.name()));
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
  } else {
    session.out = absl::StrCat("unloaded ", Describe(response.layer()));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Verb> LoadVerbs() {
  return {{.name = "load",
           .arguments = "NAME",
           .summary = "loads an attention layer under NAME",
           .min_positional = 1,
           .max_positional = 1,
           .flags = {{"checkpoint", "DIR", "a checkpoint folder under the server's repository"},
                     {"upload", "DIR", "a checkpoint folder here, streamed to the server"},
                     {"layer", "[PART.]I", "which layer: 0, encoder.3, cross.0, …"},
                     {"layer-file", "F.safetensors", "a layer that `save` wrote"},
                     {"spec", "S.json", "one's own layer: JSON of LayerSpec"},
                     {"weights", "F.safetensors", "the tensors that the spec names"},
                     {"dtype", "f32|bf16|int8", "of the packed weights; f32 by default"},
                     {"replace", "", "replace a layer of that name"}},
           .run = Load},
          {.name = "unload",
           .arguments = "NAME",
           .summary = "frees a layer once its last request has ended",
           .min_positional = 1,
           .max_positional = 1,
           .flags = {},
           .run = Unload}};
}

}  // namespace headwise::client
