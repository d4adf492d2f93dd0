// SPDX-License-Identifier: Apache-2.0
// Stage "unpack": z, q, k, v and contributions from the pass's layout into the answers.
#include <algorithm>

#include "core/batch/pass.h"
#include "core/kernel/project_out.h"

namespace headwise {
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
    for (int64_t h = 0; h < heads; ++h) {
      LoadHead(layer(), role, h, s, data_, total, out + offsets[static_cast<size_t>(h)]);
    }
    out += (queries ? s.queries : s.keys) * total;
  }
}

void Pass::UnpackContributions(Member* member, float* out) {
  const LayerSpec& spec = layer().spec();
  const int64_t rows = member->item->input.query_rows;
  const int64_t row_blocks = (rows + kTileRows - 1) / kTileRows;
  const int64_t stride = spec.heads * spec.d_out;
  RunTasks(row_blocks, [&](int64_t i, WorkerScratch* scratch) {
    const int64_t row = i * kTileRows;
    const int64_t count = std::min(kTileRows, rows - row);
    const float* z = data_.z + (member->first_row + row) * layer().z_width();
    const TileRows numbers = layer().wo().MakeRows(z, count, nullptr, &scratch->input);
    float* tile = scratch->tile.Reserve<float>(kTileRows * layer().tile_stride());
    for (int64_t head = 0; head < spec.heads; ++head) {
      for (size_t b = 0; b < layer().wo().blocks().size(); ++b) {
        const PackedMatrix::Block& block = layer().wo().blocks()[b];
        RunContribution(layer(), head, b, numbers, tile);
        float* place = out + row * stride + head * spec.d_out + block.column;
        for (int64_t t = 0; t < count; ++t) {
          std::copy_n(tile + t * layer().tile_stride(), block.width, place + t * stride);
        }
      }
    }
  });
}

}  // namespace headwise
