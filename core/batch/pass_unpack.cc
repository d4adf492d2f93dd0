// SPDX-License-Identifier: Apache-2.0
// Stage "unpack": z, q, k, v and contributions from the pass's layout into the answers.
#include <algorithm>

#include "core/batch/pass.h"
#include "core/kernel/project_out.h"

namespace headwise {
namespace {

// Copies one key/value head of one sequence to rows of `out` with `stride` floats each.
void CopyKeys(const float* kt, int64_t dk, const SequencePlan& s, int64_t stride, float* out) {
  for (int64_t key = 0; key < s.keys; ++key) {
    const int64_t block = key / kKeyBlock * kKeyBlock;
    const int64_t width = std::min(kKeyBlock, s.padded_keys() - block);
    const float* column = kt + block * dk + (key - block);
    for (int64_t d = 0; d < dk; ++d) out[key * stride + d] = column[d * width];
  }
}

}  // namespace

void Pass::Unpack() {
  for (const std::unique_ptr<Member>& member : members_) {
    if (!Dead(member.get())) UnpackMember(member.get());
  }
}

void Pass::UnpackMember(Member* member) {
  const int64_t z_width = layer().z_width();
  for (NamedOutput& output : member->result.outputs) {
    if (output.name == "z") {
      std::copy_n(data_.z + member->first_row * z_width, member->item->input.query_rows * z_width,
                  output.floats());
    } else if (output.name == "q") {
      UnpackHeads(*member, ProjectionRole::kQ, output.floats());
    } else if (output.name == "k") {
      UnpackHeads(*member, ProjectionRole::kK, output.floats());
    } else if (output.name == "v") {
      UnpackHeads(*member, ProjectionRole::kV, output.floats());
    } else if (output.name == "contributions") {
      UnpackContributions(member, output.floats());
    }
  }
}

void Pass::UnpackHeads(const Member& member, ProjectionRole role, float* out) {
  const LayerSpec& spec = layer().spec();
  const bool queries = role == ProjectionRole::kQ;
  const bool keys = role == ProjectionRole::kK;
  const int64_t total = queries ? layer().q_width() : keys ? layer().k_width() : layer().v_width();
  const int64_t heads = queries ? spec.heads : spec.kv_heads;
  const std::vector<int64_t>& offsets = queries ? layer().q_offsets()
                                        : keys  ? layer().k_offsets()
                                                : layer().v_offsets();
  for (size_t i = 0; i < member.item->input.queries.size(); ++i) {
    const SequencePlan& s = data_.sequences[static_cast<size_t>(member.first_sequence) + i];
    const int64_t rows = queries ? s.queries : s.keys;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t offset = offsets[static_cast<size_t>(h)];
      float* place = out + offset;
      if (queries) {
        const int64_t dk = spec.dk[static_cast<size_t>(h)];
        const float* q = data_.q + offset * data_.query_rows + s.q_row * dk;
        for (int64_t t = 0; t < rows; ++t) std::copy_n(q + t * dk, dk, place + t * total);
      } else if (keys) {
        const float* kt = data_.kt + s.key_slot * total + offset * s.padded_keys();
        CopyKeys(kt, layer().kv_dk(h), s, total, place);
      } else {
        const int64_t dv = layer().kv_dv(h);
        const float* v = data_.v + s.key_slot * total + offset * s.padded_keys();
        for (int64_t t = 0; t < rows; ++t) std::copy_n(v + t * dv, dv, place + t * total);
      }
    }
    out += rows * total;
  }
}

void Pass::UnpackContributions(Member* member, float* out) {
  const LayerSpec& spec = layer().spec();
  const int64_t rows = member->item->input.query_rows;
  const int64_t row_blocks = (rows + kTileRows - 1) / kTileRows;
  const int64_t stride = spec.heads * spec.d_out;
  RunTasks(row_blocks * spec.heads, [&](int64_t i, WorkerScratch* scratch) {
    const int64_t row = i / spec.heads * kTileRows;
    const int64_t head = i % spec.heads;
    const float* z = data_.z + (member->first_row + row) * layer().z_width();
    for (size_t b = 0; b < layer().wo().blocks().size(); ++b) {
      RunContribution(layer(), head, b, z, std::min(kTileRows, rows - row), stride,
                      out + row * stride + head * spec.d_out + layer().wo().blocks()[b].column,
                      scratch);
    }
  });
}

}  // namespace headwise
