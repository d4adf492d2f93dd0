// SPDX-License-Identifier: Apache-2.0
#include "server/codec_layer.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

// LayerTensor.Role numbers the roles from 1 in TensorRole's order.
constexpr int kFirstRole = v1::LayerTensor::Q_WEIGHT;
static_assert(static_cast<int>(TensorRole::kOBias) + kFirstRole == v1::LayerTensor::O_BIAS);
static_assert(static_cast<int>(TensorRole::kKStatisticBias) + kFirstRole ==
              v1::LayerTensor::K_STATISTIC_BIAS);

// Whether in and out could be told apart only by a declared orientation.
bool IsWeight(TensorRole role) {
  return role <= TensorRole::kOWeight || role == TensorRole::kKvWeight ||
         role == TensorRole::kQStatistic || role == TensorRole::kKStatistic;
}

void EncodeTensor(const LayerTensorInfo& tensor, v1::Orientation orientation,
                  v1::LayerTensor* wire) {
  wire->set_role(static_cast<v1::LayerTensor::Role>(static_cast<int>(tensor.role) + kFirstRole));
  wire->set_name(tensor.name);
  wire->set_dtype(EncodeDType(tensor.dtype));
  SetInt64s(tensor.shape, wire->mutable_shape());
  if (IsWeight(tensor.role)) wire->set_orientation(orientation);
}

// The fields of TensorNames, in the order of use.
struct NamedRole {
  TensorRole role;
  const std::string& (v1::TensorNames::*get)() const;
  std::string* (v1::TensorNames::*mutable_get)();
};
constexpr NamedRole kNamedRoles[] = {
    {TensorRole::kQWeight, &v1::TensorNames::q, &v1::TensorNames::mutable_q},
    {TensorRole::kKWeight, &v1::TensorNames::k, &v1::TensorNames::mutable_k},
    {TensorRole::kVWeight, &v1::TensorNames::v, &v1::TensorNames::mutable_v},
    {TensorRole::kQkvWeight, &v1::TensorNames::qkv, &v1::TensorNames::mutable_qkv},
    {TensorRole::kOWeight, &v1::TensorNames::o, &v1::TensorNames::mutable_o},
    {TensorRole::kQBias, &v1::TensorNames::q_bias, &v1::TensorNames::mutable_q_bias},
    {TensorRole::kKBias, &v1::TensorNames::k_bias, &v1::TensorNames::mutable_k_bias},
    {TensorRole::kVBias, &v1::TensorNames::v_bias, &v1::TensorNames::mutable_v_bias},
    {TensorRole::kQkvBias, &v1::TensorNames::qkv_bias, &v1::TensorNames::mutable_qkv_bias},
    {TensorRole::kOBias, &v1::TensorNames::o_bias, &v1::TensorNames::mutable_o_bias},
    {TensorRole::kQNorm, &v1::TensorNames::q_norm, &v1::TensorNames::mutable_q_norm},
    {TensorRole::kKNorm, &v1::TensorNames::k_norm, &v1::TensorNames::mutable_k_norm},
    {TensorRole::kQNormBias, &v1::TensorNames::q_norm_bias, &v1::TensorNames::mutable_q_norm_bias},
    {TensorRole::kKNormBias, &v1::TensorNames::k_norm_bias, &v1::TensorNames::mutable_k_norm_bias},
    {TensorRole::kSinks, &v1::TensorNames::sinks, &v1::TensorNames::mutable_sinks},
    {TensorRole::kPositionBias, &v1::TensorNames::position_bias,
     &v1::TensorNames::mutable_position_bias},
    {TensorRole::kKvWeight, &v1::TensorNames::kv, &v1::TensorNames::mutable_kv},
    {TensorRole::kKvBias, &v1::TensorNames::kv_bias, &v1::TensorNames::mutable_kv_bias},
    {TensorRole::kPreNorm, &v1::TensorNames::pre_norm, &v1::TensorNames::mutable_pre_norm},
    {TensorRole::kPreNormBias, &v1::TensorNames::pre_norm_bias,
     &v1::TensorNames::mutable_pre_norm_bias},
    {TensorRole::kQStatistic, &v1::TensorNames::q_statistic, &v1::TensorNames::mutable_q_statistic},
    {TensorRole::kKStatistic, &v1::TensorNames::k_statistic, &v1::TensorNames::mutable_k_statistic},
    {TensorRole::kQStatisticBias, &v1::TensorNames::q_statistic_bias,
     &v1::TensorNames::mutable_q_statistic_bias},
    {TensorRole::kKStatisticBias, &v1::TensorNames::k_statistic_bias,
     &v1::TensorNames::mutable_k_statistic_bias},
};

}  // namespace

std::vector<TensorUse> DecodeTensorNames(const v1::TensorNames& wire) {
  std::vector<TensorUse> uses;
  for (const NamedRole& named : kNamedRoles) {
    const std::string& name = (wire.*named.get)();
    if (!name.empty()) uses.push_back({named.role, name});
  }
  for (int head = 0; head < wire.q_norm_heads_size(); ++head) {
    uses.push_back({TensorRole::kQNorm, wire.q_norm_heads(head), head});
  }
  for (int head = 0; head < wire.k_norm_heads_size(); ++head) {
    uses.push_back({TensorRole::kKNorm, wire.k_norm_heads(head), head});
  }
  return uses;
}

void EncodeTensorNames(const std::vector<TensorUse>& uses, v1::TensorNames* wire) {
  for (const TensorUse& use : uses) {
    if (use.head >= 0) {  // in the order of the heads, as plans have them
      auto* heads = use.role == TensorRole::kQNorm ? wire->mutable_q_norm_heads()
                                                   : wire->mutable_k_norm_heads();
      *heads->Add() = use.name;
      continue;
    }
    for (const NamedRole& named : kNamedRoles) {
      if (named.role == use.role) *(wire->*named.mutable_get)() = use.name;
    }
  }
}

void EncodeSummary(const LayerInfo& info, v1::LayerSummary* wire) {
  wire->set_name(info.name);
  wire->set_version(static_cast<uint32_t>(info.version));
  wire->set_state(v1::READY);
  wire->set_family(info.source.family);
  wire->set_dtype(EncodeDType(info.dtype));
  wire->set_d_model(static_cast<uint32_t>(info.spec.d_model));
  wire->set_heads(static_cast<uint32_t>(info.spec.heads));
  wire->set_kv_heads(static_cast<uint32_t>(info.spec.kv_heads));
  wire->set_weight_bytes(info.weight_bytes);
}

void EncodeDetails(const LayerInfo& info, const std::vector<Count>& counts,
                   v1::LayerDetails* wire) {
  wire->set_name(info.name);
  wire->set_version(static_cast<uint32_t>(info.version));
  wire->set_state(v1::READY);
  wire->set_dtype(EncodeDType(info.dtype));
  wire->set_kernel(info.kernel);
  wire->set_x_enters(info.source.x_enters);
  wire->set_y_leaves(info.source.y_leaves);
  EncodeSpec(info.spec, wire->mutable_spec());
  *wire->mutable_head_ids() = wire->spec().head_ids();

  v1::LayerSource* source = wire->mutable_source();
  source->set_dir(info.source.dir);
  source->set_layer(info.source.layer);
  source->set_family(info.source.family);
  source->set_prefix(info.source.prefix);
  source->set_fused_layout(wire->spec().fused_layout());

  if (info.reduced_error.has_value()) {
    v1::ReducedError* error = wire->mutable_reduced_error();
    error->set_probe(info.reduced_error->probe);
    error->set_max_error(info.reduced_error->max_error);
    error->set_relative_l2(info.reduced_error->relative_l2);
  }
  for (const LayerTensorInfo& tensor : info.tensors) {
    EncodeTensor(tensor, wire->spec().orientation(), wire->add_tensors());
  }
  for (const Count& count : counts) {
    v1::Count* entry = wire->add_counts();
    entry->set_id(count.id);
    entry->set_value(count.value);
    entry->set_unit(count.unit);
    entry->set_convention(count.convention);
  }
}

absl::StatusOr<DType> DecodeLayerDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_UNSPECIFIED:
    case v1::F32:
      return DType::kF32;
    case v1::BF16:
      return DType::kBF16;
    case v1::INT8:
      return DType::kI8;
    default:
      return absl::InvalidArgumentError(absl::StrCat("dtype: must be F32, BF16 or INT8; was ",
                                                     v1::DType_IsValid(dtype)
                                                         ? v1::DType_Name(dtype)
                                                         : absl::StrCat(static_cast<int>(dtype))));
  }
}

StoredTensorInfo DecodeStoredTensor(const v1::StoredTensor& wire) {
  return {wire.name(), wire.dtype(), ToInt64s(wire.shape())};
}

}  // namespace headwise
