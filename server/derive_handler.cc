// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/layer/derive.h"
#include "server/codec_layer.h"
#include "server/codec_tensor.h"
#include "server/service.h"
#include "server/stored_parts.h"

namespace headwise {
namespace {

using Kind = v1::DeriveLayerRequest;

absl::StatusOr<LayerParts> Prune(const LayerParts& layer, const Kind& request) {
  auto pruned = PruneHeads(layer, ToInt64s(request.heads()));
  if (!pruned.ok()) return pruned;
  std::vector<std::pair<int64_t, double>> gates;
  for (const v1::HeadGate& gate : request.gates()) gates.emplace_back(gate.head(), gate.gate());
  std::vector<float> added;
  if (request.has_output_bias_added()) {
    auto view = DecodeTensor(request.output_bias_added(), "output_bias_added");
    if (!view.ok()) return view.status();
    auto floats = ToFloats(*view, "output_bias_added");
    if (!floats.ok()) return floats.status();
    added = *std::move(floats);
  }
  if (request.fold_gates()) *pruned = FoldOwnGates(*std::move(pruned));
  return FoldGates(*std::move(pruned), gates, added);
}

absl::Status CheckRequest(const Kind& request) {
  const auto only = [](const char* field, bool given, bool fits) {
    return given && !fits ? absl::InvalidArgumentError(
                                absl::StrCat(field, ": must be absent for this kind; was given"))
                          : absl::OkStatus();
  };
  if (request.kind() <= Kind::KIND_UNSPECIFIED || request.kind() > Kind::QUANTIZE) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind: must be PRUNE, PERMUTE, SPLIT, COMBINE or QUANTIZE; was ",
                     static_cast<int>(request.kind())));
  }
  const bool prune = request.kind() == Kind::PRUNE;
  absl::Status status =
      only("heads", request.heads_size() > 0, prune || request.kind() == Kind::PERMUTE);
  status.Update(only("gates", request.gates_size() > 0, prune));
  status.Update(only("fold_gates", request.fold_gates(), prune));
  status.Update(only("output_bias_added", request.has_output_bias_added(), prune));
  status.Update(
      only("dtype", request.dtype() != v1::DTYPE_UNSPECIFIED, request.kind() == Kind::QUANTIZE));
  if (status.ok() && request.kind() == Kind::QUANTIZE && request.dtype() != v1::INT8 &&
      request.dtype() != v1::BF16 && request.dtype() != v1::DTYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: must be INT8 or BF16; was ", v1::DType_Name(request.dtype())));
  }
  return status;
}

absl::StatusOr<LayerParts> Derive(const LayerParts& layer, const Kind& request) {
  switch (request.kind()) {
    case Kind::PRUNE:
      return Prune(layer, request);
    case Kind::PERMUTE:
      return PermuteHeads(layer, ToInt64s(request.heads()));
    default:
      return layer;
  }
}

absl::StatusOr<LayerInfo> MakeLayer(const Services& services, const Kind& request) {
  const absl::StatusOr<LayerInfo> info = services.engine->GetLayer(request.name());
  if (!info.ok()) return info.status();
  const auto parts = ReadParts(*services.loader, request.name());
  if (!parts.ok()) return parts.status();
  const auto derived = Derive(*parts, request);
  if (!derived.ok()) return derived.status();
  auto tensors = ToTensors(*derived, request.kind() == Kind::COMBINE);
  if (!tensors.ok()) return tensors.status();
  UploadLoad load;
  load.options.name = request.as();
  load.options.replace = request.replace();
  load.options.source = info->source;
  load.options.dtype = info->dtype;
  if (request.kind() == Kind::QUANTIZE) {
    load.options.dtype = request.dtype() == v1::BF16 ? DType::kBF16 : DType::kI8;
  }
  load.spec = std::move(tensors->spec);
  for (DerivedTensor& tensor : tensors->tensors) {
    load.uses.push_back({tensor.role, tensor.name});
    load.tensors.push_back({std::move(tensor.name), std::move(tensor.tensor)});
  }
  return services.loader->LoadNow(std::move(load));
}

}  // namespace

grpc::ServerUnaryReactor* HeadwiseService::DeriveLayer(grpc::CallbackServerContext* context,
                                                       const v1::DeriveLayerRequest* request,
                                                       v1::LoadLayerResponse* response) {
  auto* call = new UnaryCall(services_, context, "DeriveLayer", "");
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(""));
  status.Update(startup_.Check(request->name()));
  status.Update(CheckRequest(*request));
  if (status.ok()) {
    // On the loader's thread: it reads files and packs weights.
    status = services_.loader->Run([this, call, request, response] {
      const absl::StatusOr<LayerInfo> info = MakeLayer(services_, *request);
      if (info.ok()) EncodeSummary(*info, response->mutable_layer());
      call->Reply(info.status());
    });
    if (status.ok()) return call;
  }
  call->Reply(status);
  return call;
}

}  // namespace headwise
