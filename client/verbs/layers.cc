// SPDX-License-Identifier: Apache-2.0
// list, show, repository.
#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/counts_table.h"
#include "client/json.h"
#include "client/status.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

using Align = Table::Align;

absl::Status List(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(const v1::ListLayersResponse response, session.client.ListLayers());
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
    return absl::OkStatus();
  }
  if (response.layers().empty()) {
    session.out = "no layers\n";
    return absl::OkStatus();
  }
  Table table({{"name"},
               {"version", Align::kRight},
               {"state"},
               {"family"},
               {"dtype"},
               {"D", Align::kRight},
               {"heads", Align::kRight},
               {"kv", Align::kRight},
               {"weights", Align::kRight}});
  for (const v1::LayerSummary& layer : response.layers()) {
    table.Add({layer.name(), absl::StrCat(layer.version()), v1::LayerState_Name(layer.state()),
               layer.family(), v1::DType_Name(layer.dtype()), absl::StrCat(layer.d_model()),
               absl::StrCat(layer.heads()), absl::StrCat(layer.kv_heads()),
               HumanBytes(layer.weight_bytes())});
  }
  session.out = table.Render(session.terminal);
  return absl::OkStatus();
}

// "0-5" where every id is a number, else the ids as they are.
std::string LayerIds(const v1::CheckpointSummary& checkpoint) {
  std::vector<uint32_t> numbers;
  for (const std::string& id : checkpoint.layers()) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(id, &number)) return absl::StrJoin(checkpoint.layers(), ",");
    numbers.push_back(number);
  }
  return CompactList(numbers);
}

absl::Status Repository(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(const v1::ListRepositoryResponse response,
                          session.client.ListRepository());
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
    return absl::OkStatus();
  }
  if (response.checkpoints().empty()) {
    session.out = "no checkpoints\n";
    return absl::OkStatus();
  }
  Table table({{"dir"}, {"family"}, {"layers"}, {"note"}});
  for (const v1::CheckpointSummary& checkpoint : response.checkpoints()) {
    table.Add({checkpoint.dir(), checkpoint.family(), LayerIds(checkpoint),
               checkpoint.supported() ? "" : checkpoint.reason()});
  }
  session.out = table.Render(session.terminal);
  return absl::OkStatus();
}

// One figure where all heads have the same width, else each.
std::string Widths(const google::protobuf::RepeatedField<uint32_t>& widths) {
  const bool equal =
      std::all_of(widths.begin(), widths.end(), [&](uint32_t width) { return width == widths[0]; });
  if (widths.empty()) return "-";
  return equal ? absl::StrCat(widths[0]) : absl::StrJoin(widths, ",");
}

std::string MaskText(const v1::LayerSpec& spec) {
  const std::string kind = spec.mask().causal() ? "causal" : "bidirectional";
  if (!spec.mask().has_window()) return kind;
  return absl::StrCat(kind, ", window ", spec.mask().window());
}

std::string RopeText(const v1::LayerSpec& spec) {
  if (!spec.has_rope()) return "none";
  const v1::RopeSpec& rope = spec.rope();
  return absl::StrFormat("%s, %d dims, base %g, %s", v1::RopeSpec::Layout_Name(rope.layout()),
                         rope.dims(), rope.base(), v1::RopeSpec::Scaling_Name(rope.scaling()));
}

// Empty where the layer doesn't keep it, which is not to say that there is none.
std::string PreNormText(const v1::LayerDetails& layer) {
  const v1::PreNormSpec& norm = layer.spec().pre_norm();
  std::string text =
      absl::StrFormat("%s, epsilon %g", v1::QkNormSpec::Kind_Name(norm.kind()), norm.epsilon());
  for (const v1::LayerTensor& tensor : layer.tensors()) {
    if (tensor.role() == v1::LayerTensor::PRE_NORM) absl::StrAppend(&text, ", weight");
    if (tensor.role() == v1::LayerTensor::PRE_NORM_BIAS) absl::StrAppend(&text, ", bias");
  }
  return absl::StrCat(text, " (x has been through it)");
}

std::string SourceText(const v1::LayerSource& source) {
  std::string text = source.family();
  if (!source.dir().empty()) {
    absl::StrAppend(&text, ", ", source.dir(), " layer ", source.layer());
  }
  if (!source.prefix().empty()) absl::StrAppend(&text, ", prefix ", source.prefix());
  return text;
}

std::string Overview(const v1::LayerDetails& layer) {
  const v1::LayerSpec& spec = layer.spec();
  std::string text =
      absl::StrCat(CleanText(layer.name()), " version ", layer.version(), ", ",
                   v1::LayerState_Name(layer.state()), ", ", v1::DType_Name(layer.dtype()),
                   ", kernel ", CleanText(layer.kernel()), "\n");
  const auto line = [&text](absl::string_view title, absl::string_view value) {
    absl::StrAppend(&text, absl::StrFormat("  %-9s %s\n", title, CleanText(value)));
  };
  line("source", SourceText(layer.source()));
  line("x enters", layer.x_enters());
  line("y leaves", layer.y_leaves());
  line("width", absl::StrCat("d_model ", spec.d_model(), ", d_memory ", spec.d_memory(), ", d_out ",
                             spec.d_out()));
  line("heads", absl::StrCat(spec.heads(), " query, ", spec.kv_heads(), " key/value; dk ",
                             Widths(spec.dk()), ", dv ", Widths(spec.dv())));
  line("head ids", CompactList({layer.head_ids().begin(), layer.head_ids().end()}));
  line("scale", spec.has_scale() ? absl::StrFormat("%.6g", spec.scale()) : "1/sqrt(dk)");
  line("mask", MaskText(spec));
  line("rope", RopeText(spec));
  if (spec.has_pre_norm()) line("pre-norm", PreNormText(layer));
  line("layout", absl::StrCat(v1::Orientation_Name(spec.orientation()), ", ",
                              v1::FusedLayout_Name(spec.fused_layout())));
  if (layer.has_reduced_error()) {
    const v1::ReducedError& error = layer.reduced_error();
    line("error", absl::StrFormat("against f32: largest %.3g of max|y|, relative L2 %.3g (%s)",
                                  error.max_error(), error.relative_l2(), error.probe()));
  }
  return text;
}

std::string TensorTable(const v1::LayerDetails& layer, const Terminal& terminal) {
  Table table({{"role"}, {"tensor"}, {"dtype"}, {"shape"}, {"orientation"}});
  for (const v1::LayerTensor& tensor : layer.tensors()) {
    const bool oriented = tensor.orientation() != v1::ORIENTATION_UNSPECIFIED;
    table.Add({v1::LayerTensor::Role_Name(tensor.role()), tensor.name(),
               v1::DType_Name(tensor.dtype()),
               absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"),
               oriented ? v1::Orientation_Name(tensor.orientation()) : ""});
  }
  return table.Render(terminal);
}

absl::Status Show(Session& session) {
  v1::GetLayerRequest request;
  request.set_name(session.name());
  CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails layer, session.client.GetLayer(request));
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(layer));
    return absl::OkStatus();
  }
  session.out = Overview(layer);
  if (!layer.tensors().empty()) {
    absl::StrAppend(&session.out, "\n", TensorTable(layer, session.terminal));
  }
  if (!layer.counts().empty()) {
    const std::vector<v1::Count> counts(layer.counts().begin(), layer.counts().end());
    absl::StrAppend(&session.out, "\n", CountsText(counts, session.terminal));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Verb> LayerVerbs() {
  return {{.name = "list",
           .arguments = "",
           .summary = "the layers in memory",
           .flags = {},
           .run = List},
          {.name = "show",
           .arguments = "NAME",
           .summary = "a layer's settings, tensors and counts",
           .min_positional = 1,
           .max_positional = 1,
           .flags = {},
           .run = Show},
          {.name = "repository",
           .arguments = "",
           .summary = "the checkpoints that the server can load from",
           .flags = {},
           .run = Repository}};
}

}  // namespace headwise::client
