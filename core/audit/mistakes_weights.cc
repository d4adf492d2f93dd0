// SPDX-License-Identifier: Apache-2.0
// Weights read wrongly, W_O, biases, and what stands around the layer: the norm before, the
// residual.
#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/audit/mistakes.h"
#include "core/layer/stored_weights.h"
#include "core/reference/reference_norm.h"

namespace headwise {
namespace {

constexpr int64_t kCodeGenBlocks = 4;

// A copy of the case's matrices to be changed.
std::shared_ptr<LayerMatrices> Edit(AuditCase* c) {
  auto matrices = std::make_shared<LayerMatrices>(*c->matrices);
  c->matrices = matrices;
  return matrices;
}

// [rows, columns] whose memory is read as [columns, rows] and turned.
std::vector<float> ReadTransposed(const std::vector<float>& matrix, int64_t rows) {
  if (rows == 0) return {};
  const int64_t columns = static_cast<int64_t>(matrix.size()) / rows;
  std::vector<float> read(matrix.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      read[static_cast<size_t>(r * columns + i)] = matrix[static_cast<size_t>(i * rows + r)];
    }
  }
  return read;
}

bool TransposeInputs(int64_t form, AuditCase* c) {
  if (form > 0) return false;
  const auto matrices = Edit(c);
  matrices->wq = ReadTransposed(matrices->wq, c->spec.q_width());
  matrices->wk = ReadTransposed(matrices->wk, c->spec.k_width());
  matrices->wv = ReadTransposed(matrices->wv, c->spec.v_width());
  matrices->wq_statistic = ReadTransposed(matrices->wq_statistic, c->spec.q_statistic_rows());
  matrices->wk_statistic = ReadTransposed(matrices->wk_statistic, c->spec.k_statistic_rows());
  c->projection_key += "weights_transposed;";
  return true;
}

// q, k and v come from the matrices of these.
bool SwapInputs(const std::array<int, 3>& from, int64_t form, AuditCase* c) {
  const LayerSpec& s = c->spec;
  if (form > 0 || s.kv_heads != s.heads || s.dk != s.dv || s.d_model != s.d_memory) return false;
  const LayerMatrices own = *c->matrices;
  const auto matrices = Edit(c);
  const std::array<const std::vector<float>*, 3> weights = {&own.wq, &own.wk, &own.wv};
  const std::array<const std::vector<float>*, 3> biases = {&own.bq, &own.bk, &own.bv};
  const auto pick = [&](size_t role) { return static_cast<size_t>(from[role]); };
  matrices->wq = *weights[pick(0)], matrices->bq = *biases[pick(0)];
  matrices->wk = *weights[pick(1)], matrices->bk = *biases[pick(1)];
  matrices->wv = *weights[pick(2)], matrices->bv = *biases[pick(2)];
  c->projection_key += absl::StrCat("swap", from[0], from[1], from[2], ";");
  return true;
}

enum class Fused { kBlocks, kPerHead, kPerGroup, kCodeGen };

struct FusedRow {
  WeightMatrix matrix = WeightMatrix::kQ;
  int64_t row = 0;

  bool operator==(const FusedRow&) const = default;
};

void Append(WeightMatrix matrix, int64_t first, int64_t count, std::vector<FusedRow>* rows) {
  for (int64_t i = 0; i < count; ++i) rows->push_back({matrix, first + i});
}

// What each row of a fused weight belongs to; empty where the layer can't be stored so.
std::vector<FusedRow> RowsOf(const LayerSpec& spec, Fused layout) {
  std::vector<FusedRow> rows;
  if (layout == Fused::kCodeGen) {
    if (spec.kv_heads != spec.heads || spec.heads % kCodeGenBlocks != 0 || !spec.equal_widths() ||
        spec.dk != spec.dv) {
      return {};
    }
    const int64_t block = spec.q_width() / kCodeGenBlocks;
    for (int64_t b = 0; b < kCodeGenBlocks; ++b) {
      Append(WeightMatrix::kQ, b * block, block, &rows);
      Append(WeightMatrix::kV, b * block, block, &rows);
      Append(WeightMatrix::kK, b * block, block, &rows);
    }
    return rows;
  }
  if (layout == Fused::kPerHead && spec.kv_heads != spec.heads) return {};
  LayerSpec stored = spec;
  stored.fused_layout = layout == Fused::kBlocks    ? FusedLayout::kBlocks
                        : layout == Fused::kPerHead ? FusedLayout::kPerHead
                                                    : FusedLayout::kPerGroup;
  const std::vector<StoredWeight> weights = ListStoredWeights(stored, false);
  for (const WeightStretch& stretch : weights.front().stretches) {
    Append(stretch.matrix, stretch.first, stretch.rows, &rows);
  }
  return rows;
}

std::optional<Fused> FusedOf(FusedLayout layout) {
  switch (layout) {
    case FusedLayout::kBlocks:
      return Fused::kBlocks;
    case FusedLayout::kPerHead:
      return Fused::kPerHead;
    case FusedLayout::kPerGroup:
      return Fused::kPerGroup;
    case FusedLayout::kSeparate:
      break;
  }
  return std::nullopt;
}

// The `form`-th layout that the layer's fused weight may really have, if it isn't `read`. A layer
// with separate weights may have been fused by the caller in any.
std::optional<Fused> StoredAs(const LayerSpec& spec, Fused read, int64_t form) {
  const std::optional<Fused> own = FusedOf(spec.fused_layout);
  std::vector<Fused> may;
  if (own.has_value()) {
    may = {*own};
  } else {
    may = {Fused::kBlocks, Fused::kPerHead};
    // With a group for each head that is the same as PER_HEAD.
    if (spec.kv_heads != spec.heads) may.push_back(Fused::kPerGroup);
  }
  std::erase(may, read);
  std::erase_if(may, [&](Fused layout) {
    const std::vector<FusedRow> rows = RowsOf(spec, layout);
    return rows.empty() || rows == RowsOf(spec, read);
  });
  if (form >= static_cast<int64_t>(may.size())) return std::nullopt;
  return may[static_cast<size_t>(form)];
}

float* RowOf(const FusedRow& row, int64_t depth, LayerMatrices* matrices) {
  std::vector<float>& matrix = row.matrix == WeightMatrix::kQ   ? matrices->wq
                               : row.matrix == WeightMatrix::kK ? matrices->wk
                                                                : matrices->wv;
  return matrix.data() + row.row * depth;
}

float& BiasOf(const FusedRow& row, LayerMatrices* matrices) {
  std::vector<float>& bias = row.matrix == WeightMatrix::kQ   ? matrices->bq
                             : row.matrix == WeightMatrix::kK ? matrices->bk
                                                              : matrices->bv;
  return bias[static_cast<size_t>(row.row)];
}

bool ReadFused(Fused read, int64_t form, AuditCase* c) {
  const LayerSpec& spec = c->spec;
  if (spec.d_model != spec.d_memory || RowsOf(spec, read).empty()) return false;
  const std::optional<Fused> stored = StoredAs(spec, read, form);
  if (!stored.has_value()) return false;
  const std::vector<FusedRow> from = RowsOf(spec, *stored), to = RowsOf(spec, read);
  LayerMatrices own = *c->matrices;
  const bool biases = !own.bq.empty() || !own.bk.empty() || !own.bv.empty();
  const auto matrices = Edit(c);
  for (LayerMatrices* m : {&own, matrices.get()}) {
    if (!biases) break;
    m->bq.resize(static_cast<size_t>(spec.q_width()));
    m->bk.resize(static_cast<size_t>(spec.k_width()));
    m->bv.resize(static_cast<size_t>(spec.v_width()));
  }
  for (size_t i = 0; i < from.size(); ++i) {
    std::copy_n(RowOf(from[i], spec.d_model, &own), spec.d_model,
                RowOf(to[i], spec.d_model, matrices.get()));
    if (biases) BiasOf(to[i], matrices.get()) = BiasOf(from[i], &own);
  }
  c->projection_key +=
      absl::StrCat("fused", static_cast<int>(read), static_cast<int>(*stored), ";");
  return true;
}

bool TransposeOut(int64_t form, AuditCase* c) {
  if (form > 0 || c->spec.d_out != c->spec.z_width()) return false;
  const auto matrices = Edit(c);
  matrices->wo = ReadTransposed(matrices->wo, c->spec.d_out);
  return true;
}

bool FirstSlice(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.equal_widths() || c->spec.heads == 1) return false;
  const auto matrices = Edit(c);
  const int64_t dv = c->spec.dv.front(), width = c->spec.z_width();
  for (int64_t o = 0; o < c->spec.d_out; ++o) {
    float* row = matrices->wo.data() + o * width;
    for (int64_t i = dv; i < width; ++i) row[i] = row[i % dv];
  }
  return true;
}

bool SkipOut(int64_t form, AuditCase* c) {
  c->plan.skip_wo = true;
  return form == 0 && c->spec.d_out == c->spec.z_width();
}

bool DropBiases(std::initializer_list<std::vector<float> LayerVectors::*> biases, int64_t form,
                AuditCase* c) {
  const auto absent = [&](auto bias) { return (*c->matrices.*bias).empty(); };
  if (form > 0 || std::all_of(biases.begin(), biases.end(), absent)) return false;
  const auto matrices = Edit(c);
  for (const auto bias : biases) (*matrices.*bias).clear();
  return true;
}

// A memory of the caller's own has not been through this norm.
bool NormAgain(int64_t form, AuditCase* c) {
  if (form > 0 || !c->spec.pre_norm.has_value()) return false;
  auto input = std::make_shared<ReferenceInput>(*c->input);
  ApplyPreNorm(c->spec, *c->matrices, &input->x);
  if (!input->own_memory) input->memory = input->x;
  c->input = std::move(input);
  c->projection_key += "prenorm_twice;";
  return true;
}

template <int kQ, int kK, int kV>
bool Swap(int64_t form, AuditCase* c) {
  return SwapInputs({kQ, kK, kV}, form, c);
}

template <std::vector<float> LayerVectors::*... kBiases>
bool Drop(int64_t form, AuditCase* c) {
  return DropBiases({kBiases...}, form, c);
}

template <Fused kRead>
bool Read(int64_t form, AuditCase* c) {
  return ReadFused(kRead, form, c);
}

constexpr absl::string_view kOrder = "read q, k and v in the order in which they are stored";
constexpr absl::string_view kLayout = "split the fused weight as its family stores it";
constexpr Mistake kMistakes[] = {
    {"wo_missing", "W_O is missing: y is the concatenated heads",
     "multiply the concatenated heads by W_O and add b_o", kChangesOutWeights | kChangesOutBias,
     SkipOut},
    {"wo_transposed", "W_O is transposed", "use W_O in its declared orientation",
     kChangesOutWeights, TransposeOut},
    {"wo_row_slices",
     "W_O is applied per head with the wrong slices: its rows instead of its "
     "columns",
     "give head r the dv columns of W_O [D, H*dv] that are its own", kChangesOutWeights,
     // z_r times rows of W_O, summed over heads, is z W_O without the transpose.
     TransposeOut},
    {"wo_first_slice", "every head goes through the first head's slice of W_O",
     "give head r its own slice of W_O", kChangesOutWeights, FirstSlice},
    {"weights_transposed", "the weights of q, k, v are transposed (in x out read as out x in)",
     "use the weights in their declared orientation", kChangesWeights, TransposeInputs},
    {"swap_kqv", "q, k, v are read in the order k, q, v", kOrder, kChangesWeights, Swap<1, 0, 2>},
    {"swap_vkq", "q, k, v are read in the order v, k, q", kOrder, kChangesWeights, Swap<2, 1, 0>},
    {"swap_qvk", "q, k, v are read in the order q, v, k", kOrder, kChangesWeights, Swap<0, 2, 1>},
    {"swap_kvq", "q, k, v are read in the order k, v, q", kOrder, kChangesWeights, Swap<1, 2, 0>},
    {"swap_vqk", "q, k, v are read in the order v, q, k", kOrder, kChangesWeights, Swap<2, 0, 1>},
    {"fused_l1", "the fused QKV weight is read in another layout: [q all; k all; v all]", kLayout,
     kChangesWeights, Read<Fused::kBlocks>},
    {"fused_l2", "the fused QKV weight is read in another layout: per head q, k, v", kLayout,
     kChangesWeights, Read<Fused::kPerHead>},
    {"fused_l5", "the fused QKV weight is read in another layout: CodeGen's four blocks of q, v, k",
     kLayout, kChangesWeights, Read<Fused::kCodeGen>},
    {"bias_q", "the bias of q is ignored (b_q)", "add b_q after the q projection", kChangesQBias,
     Drop<&LayerVectors::bq, &LayerVectors::bq_statistic>},
    {"bias_k", "the bias of k is ignored (b_k)", "add b_k after the k projection", kChangesKBias,
     Drop<&LayerVectors::bk, &LayerVectors::bk_statistic>},
    {"bias_v", "the bias of v is ignored (b_v)", "add b_v after the v projection", kChangesVBias,
     Drop<&LayerVectors::bv>},
    {"bias_o", "the bias of o is ignored (b_o)", "add b_o once, after W_O", kChangesOutBias,
     Drop<&LayerVectors::bo>},
    {"bias_o_per_head", "b_o is added once per head", "add b_o once, after the sum over heads",
     kChangesOutBias,
     [](int64_t form, AuditCase* c) {
       c->plan.bias_factor = static_cast<double>(c->spec.heads);
       return form == 0 && c->spec.heads > 1 && !c->matrices->bo.empty();
     }},
    {"residual_added", "the residual x is already added",
     "compare what leaves W_O, before the residual", kChangesResidual,
     [](int64_t form, AuditCase* c) {
       c->plan.add_x = true;
       return form == 0 && c->spec.d_out == c->spec.d_model;
     }},
    {"prenorm_twice", "the norm before attention is applied again to x",
     "give the layer x as it is: it has been through that norm", kChangesInput, NormAgain},
};

}  // namespace

absl::Span<const Mistake> WeightMistakes() { return kMistakes; }

}  // namespace headwise
