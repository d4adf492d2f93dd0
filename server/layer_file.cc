// SPDX-License-Identifier: Apache-2.0
#include "server/layer_file.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rules.h"
#include "core/format/file.h"
#include "core/format/safetensors.h"
#include "headwise/v1/headwise.pb.h"
#include "server/codec_layer.h"

namespace headwise {
namespace {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (status.ok()) return json;
  return absl::InternalError(
      absl::StrCat("layer file: must be JSON; was ", std::string(status.message())));
}

v1::LayerOrigin OriginOf(const LayerSource& source) {
  v1::LayerOrigin origin;
  origin.mutable_source()->set_dir(source.dir);
  origin.mutable_source()->set_layer(source.layer);
  origin.mutable_source()->set_family(source.family);
  origin.mutable_source()->set_prefix(source.prefix);
  origin.set_x_enters(source.x_enters);
  origin.set_y_leaves(source.y_leaves);
  return origin;
}

// The parts in the order in which the spec's tensors are read back.
std::vector<const StoredPart*> OrderParts(const StoredLayer& layer, const v1::TensorNames& names) {
  std::vector<const StoredPart*> parts;
  std::set<absl::string_view> seen;
  for (const TensorUse& use : DecodeTensorNames(names)) {
    for (const StoredPart& part : layer.parts) {
      if (part.name == use.name && seen.insert(part.name).second) parts.push_back(&part);
    }
  }
  return parts;
}

}  // namespace

absl::StatusOr<LayerFile> DescribeLayerFile(const StoredLayer& layer) {
  v1::LayerSpec spec;
  EncodeSpec(layer.spec, &spec);
  EncodeTensorNames(layer.uses, spec.mutable_tensors());
  absl::StatusOr<std::string> spec_json = ToJson(spec);
  if (!spec_json.ok()) return spec_json.status();
  absl::StatusOr<std::string> origin_json = ToJson(OriginOf(layer.source));
  if (!origin_json.ok()) return origin_json.status();

  LayerFile file;
  file.metadata = {{"headwise.format", "1"},
                   {"headwise.origin", *std::move(origin_json)},
                   {"headwise.spec", *std::move(spec_json)}};
  file.parts = OrderParts(layer, spec.tensors());
  std::vector<std::pair<std::string, TensorView>> views;
  for (const StoredPart* part : file.parts) {
    TensorView view;
    view.dtype = part->dtype;
    view.shape = part->shape;
    file.total_bytes += static_cast<int64_t>(view.bytes());
    views.emplace_back(part->name, view);
  }
  file.head = EncodeSafetensorsHead(views, file.metadata);
  file.total_bytes += static_cast<int64_t>(file.head.size());
  return file;
}

absl::Status CheckSaveName(const std::string& file) {
  if (IsPlainName(file)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "file: must be [A-Za-z0-9._-]{1,128} without a leading dot; was \"", Printable(file), "\""));
}

}  // namespace headwise
