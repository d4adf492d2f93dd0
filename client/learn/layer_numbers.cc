// SPDX-License-Identifier: Apache-2.0
#include "client/learn/layer_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/download.h"
#include "client/learn/temporary_layer.h"
#include "client/status.h"
#include "client/tensors.h"

namespace headwise::client {
namespace {

// One entry a head: one that is given stands for all, none for `absent`.
std::vector<int64_t> PerHead(const google::protobuf::RepeatedField<uint32_t>& widths, size_t heads,
                             const std::vector<int64_t>& absent) {
  std::vector<int64_t> all(widths.begin(), widths.end());
  if (all.size() == 1) all.resize(heads, all[0]);
  return all.size() == heads ? all : absent;
}

// Widths of the key/value heads: those of the query heads that read them.
std::vector<int64_t> KvWidths(const std::vector<int64_t>& widths,
                              const std::vector<int64_t>& query_to_kv, size_t kv_heads) {
  std::vector<int64_t> kv(kv_heads, 0);
  for (size_t r = 0; r < query_to_kv.size(); ++r) {
    kv[static_cast<size_t>(query_to_kv[r])] = widths[r];
  }
  return kv;
}

int64_t SumOf(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// T of each sequence: as the answer understood them. S: the memory's, or T.
void SetLengths(const v1::AttentionInput& input, const v1::ForwardResponse& response,
                Stages* stages) {
  stages->queries.assign(response.lengths().begin(), response.lengths().end());
  stages->keys = stages->queries;
  if (!input.has_memory()) return;
  stages->keys.assign(input.memory_lengths().begin(), input.memory_lengths().end());
  if (stages->keys.empty()) stages->keys = {static_cast<int64_t>(input.memory().shape(0))};
}

absl::Status Misfit(const std::string& name, size_t expected, size_t actual) {
  return absl::InternalError(
      absl::StrCat("answer: ", name, " must have ", expected, " numbers; was ", actual));
}

// The answer's tensors by name.
class Answer {
 public:
  explicit Answer(const v1::ForwardResponse& response) {
    for (const v1::NamedTensor& tensor : response.tensors()) by_name_[tensor.name()] = &tensor;
  }

  // INTERNAL: missing, or of another size.
  absl::Status Read(const std::string& name, int64_t elements, std::vector<double>* out) const {
    const auto found = by_name_.find(name);
    const size_t expected = static_cast<size_t>(elements);
    if (found == by_name_.end()) return Misfit(name, expected, 0);
    CLIENT_ASSIGN_OR_RETURN(const TensorView view, ViewOf(*found->second));
    CLIENT_ASSIGN_OR_RETURN(*out, ToDoubles(view, name));
    return out->size() == expected ? absl::OkStatus() : Misfit(name, expected, out->size());
  }

 private:
  std::map<std::string, const v1::NamedTensor*> by_name_;
};

absl::Status ReadMatrix(const WeightsFile& file, const std::string& weight, const std::string& bias,
                        bool out_in, Matrix* matrix) {
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor tensor, file.Read(weight));
  CLIENT_ASSIGN_OR_RETURN(matrix->weight, ToDoubles(tensor.view(), weight));
  if (tensor.shape.size() != 2) return Misfit(weight, 2, tensor.shape.size());
  matrix->out = tensor.shape[out_in ? 0 : 1];
  matrix->in = tensor.shape[out_in ? 1 : 0];
  if (!out_in) {
    std::vector<double> turned(matrix->weight.size());
    for (int64_t i = 0; i < matrix->in; ++i) {
      for (int64_t o = 0; o < matrix->out; ++o) {
        turned[static_cast<size_t>(o * matrix->in + i)] =
            matrix->weight[static_cast<size_t>(i * matrix->out + o)];
      }
    }
    matrix->weight = std::move(turned);
  }
  if (bias.empty()) return absl::OkStatus();
  CLIENT_ASSIGN_OR_RETURN(const OwnedTensor added, file.Read(bias));
  CLIENT_ASSIGN_OR_RETURN(matrix->bias, ToDoubles(added.view(), bias));
  const size_t expected = static_cast<size_t>(matrix->out);
  return matrix->bias.size() == expected ? absl::OkStatus()
                                         : Misfit(bias, expected, matrix->bias.size());
}

absl::StatusOr<LayerWeights> ReadWeights(const WeightsFile& file, const std::string& path) {
  v1::UploadHeader header;
  CLIENT_RETURN_IF_ERROR(DescribeSavedLayer(file, path, &header));
  const v1::TensorNames& names = header.spec().tensors();
  const bool out_in = header.spec().orientation() == v1::OUT_IN;
  LayerWeights weights;
  CLIENT_RETURN_IF_ERROR(ReadMatrix(file, names.q(), names.q_bias(), out_in, &weights.q));
  CLIENT_RETURN_IF_ERROR(ReadMatrix(file, names.k(), names.k_bias(), out_in, &weights.k));
  CLIENT_RETURN_IF_ERROR(ReadMatrix(file, names.v(), names.v_bias(), out_in, &weights.v));
  CLIENT_RETURN_IF_ERROR(ReadMatrix(file, names.o(), names.o_bias(), out_in, &weights.o));
  return weights;
}

absl::StatusOr<LayerWeights> DownloadWeights(Client* client, const std::string& name) {
  CLIENT_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create());
  const std::string path = folder->path() + "/layer.safetensors";
  CLIENT_ASSIGN_OR_RETURN(const auto download, DownloadFile::Create(path));
  CLIENT_RETURN_IF_ERROR(client->DownloadLayer(
      name, [&](const v1::DownloadLayerResponse& part) { return download->Add(part); }));
  CLIENT_RETURN_IF_ERROR(download->Finish());
  CLIENT_ASSIGN_OR_RETURN(const auto file, WeightsFile::Open(path));
  return ReadWeights(*file, path);
}

}  // namespace

HeadLayout LayoutOf(const v1::LayerSpec& spec) {
  HeadLayout layout;
  const size_t heads = spec.heads();
  const size_t groups = spec.kv_heads() == 0 ? heads : spec.kv_heads();
  layout.query_to_kv.assign(spec.query_to_kv().begin(), spec.query_to_kv().end());
  layout.head_ids.assign(spec.head_ids().begin(), spec.head_ids().end());
  for (size_t r = layout.query_to_kv.size(); r < heads; ++r) {
    layout.query_to_kv.push_back(static_cast<int64_t>(r / (heads / groups)));
  }
  for (size_t r = layout.head_ids.size(); r < heads; ++r) {
    layout.head_ids.push_back(static_cast<int64_t>(r));
  }
  const std::vector<int64_t> even(heads, spec.d_model() / std::max<int64_t>(1, spec.heads()));
  const std::vector<int64_t> dk = PerHead(spec.dk(), heads, even);
  const std::vector<int64_t> dv = PerHead(spec.dv(), heads, dk);
  layout.q = ColumnsOf(dk);
  layout.z = ColumnsOf(dv);
  layout.k = ColumnsOf(KvWidths(dk, layout.query_to_kv, groups));
  layout.v = ColumnsOf(KvWidths(dv, layout.query_to_kv, groups));
  for (const int64_t width : dk) {
    layout.scale.push_back(spec.has_scale() ? spec.scale()
                                            : 1.0 / std::sqrt(static_cast<double>(width)));
  }
  return layout;
}

double Stages::Pair(const std::vector<double>& pairs, int64_t sequence, int64_t head, int64_t query,
                    int64_t key) const {
  const size_t b = static_cast<size_t>(sequence);
  return pairs[static_cast<size_t>(
      OffsetOf({layout.heads(), queries[b], keys[b]}, {head, query, key}))];
}

int64_t Stages::FirstQuery(int64_t sequence) const {
  return std::accumulate(queries.begin(), queries.begin() + sequence, int64_t{0});
}

int64_t Stages::FirstKey(int64_t sequence) const {
  return std::accumulate(keys.begin(), keys.begin() + sequence, int64_t{0});
}

absl::StatusOr<Stages> ReadStages(const v1::LayerDetails& layer, const v1::AttentionInput& input,
                                  const v1::ForwardResponse& response) {
  Stages stages;
  stages.layout = LayoutOf(layer.spec());
  stages.d_out = layer.spec().d_out();
  SetLengths(input, response, &stages);
  const HeadLayout& layout = stages.layout;
  const int64_t n = SumOf(stages.queries), m = SumOf(stages.keys);
  const Answer answer(response);
  const struct {
    const char* name;
    int64_t tokens;
    const HeadColumns& columns;
    HeadTensor* tensor;
  } kHeadTensors[] = {{"q", n, layout.q, &stages.q},
                      {"k", m, layout.k, &stages.k},
                      {"v", m, layout.v, &stages.v},
                      {"z", n, layout.z, &stages.z}};
  for (const auto& [name, tokens, columns, tensor] : kHeadTensors) {
    tensor->columns = columns;
    CLIENT_RETURN_IF_ERROR(answer.Read(name, tokens * columns.total, &tensor->values));
  }
  for (size_t b = 0; b < stages.queries.size(); ++b) {
    const int64_t pairs = layout.heads() * stages.queries[b] * stages.keys[b];
    CLIENT_RETURN_IF_ERROR(
        answer.Read(absl::StrCat("scores.", b), pairs, &stages.scores.emplace_back()));
    CLIENT_RETURN_IF_ERROR(answer.Read(absl::StrCat("p.", b), pairs, &stages.p.emplace_back()));
  }
  CLIENT_RETURN_IF_ERROR(answer.Read("y", n * stages.d_out, &stages.y));
  for (const v1::NamedTensor& tensor : response.tensors()) {
    if (tensor.name() != "contributions") continue;
    CLIENT_RETURN_IF_ERROR(
        answer.Read("contributions", n * layout.heads() * stages.d_out, &stages.contributions));
  }
  return stages;
}

absl::StatusOr<Stages> RunStages(Client* client, const v1::LayerDetails& layer,
                                 const v1::AttentionInput& input, bool contributions) {
  v1::ForwardRequest request;
  request.set_layer(layer.name());
  request.set_expected_version(layer.version());
  *request.mutable_input() = input;
  for (const v1::Output output : {v1::Y, v1::Z, v1::Q, v1::K, v1::V, v1::P, v1::SCORES}) {
    request.add_outputs(output);
  }
  if (contributions) request.add_outputs(v1::CONTRIBUTIONS);
  CLIENT_ASSIGN_OR_RETURN(const v1::ForwardResponse response, client->Forward(request));
  return ReadStages(layer, input, response);
}

absl::StatusOr<std::vector<double>> WireDoubles(const v1::Tensor& tensor, absl::string_view name) {
  v1::NamedTensor named;
  named.set_name(std::string(name));
  named.set_dtype(tensor.dtype());
  *named.mutable_shape() = tensor.shape();
  named.set_data(tensor.data());
  CLIENT_ASSIGN_OR_RETURN(const TensorView view, ViewOf(named));
  return ToDoubles(view, name);
}

v1::Tensor WireFloats(const std::vector<uint32_t>& shape, const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::F32);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  tensor.set_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

std::vector<double> Matrix::Apply(const std::vector<double>& x, int64_t token, int64_t begin,
                                  int64_t width) const {
  std::vector<double> result;
  for (int64_t o = begin; o < begin + width; ++o) {
    double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(o)];
    const double* row = weight.data() + o * in;
    const double* features = x.data() + token * in;
    for (int64_t i = 0; i < in; ++i) sum += row[i] * features[i];
    result.push_back(sum);
  }
  return result;
}

absl::StatusOr<LayerWeights> FetchWeights(Client* client, const v1::LayerDetails& layer) {
  if (layer.spec().fused_layout() == v1::SEPARATE) return DownloadWeights(client, layer.name());
  v1::DeriveLayerRequest request;
  request.set_name(layer.name());
  request.set_kind(v1::DeriveLayerRequest::SPLIT);
  CLIENT_ASSIGN_OR_RETURN(const auto split, TemporaryLayer::Derive(client, request));
  return DownloadWeights(client, split->name());
}

absl::StatusOr<v1::LayerDetails> DescribeLayer(Client* client, const std::string& name) {
  v1::GetLayerRequest request;
  request.set_name(name);
  return client->GetLayer(request);
}

}  // namespace headwise::client
