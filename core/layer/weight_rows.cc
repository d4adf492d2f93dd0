// SPDX-License-Identifier: Apache-2.0
// UnpackRows: stored weights as f32 rows, a few at a time.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/kernel/tile_sizes.h"
#include "core/kernel/vector_ops.h"
#include "core/layer/stored_weights.h"
#include "core/layer/weights.h"

namespace headwise {
namespace {

// Rows that are taken at once: whole panels of a packed matrix, and about as much as the
// second-level cache holds, so that rows are packed before they leave it.
int64_t RowsAtOnce(Orientation orientation, int64_t rows, int64_t depth) {
  constexpr int64_t kBytes = 1 << 20, kPanelRows = 64;
  int64_t at_once = kBytes / (depth * 4);
  // Of in x out a piece of every stored row is read each time: few times, so that pieces are long,
  // and not in one go, which would take the tensor's bytes again.
  if (orientation == Orientation::kInOut) at_once = std::max(at_once, rows / 16);
  return RoundUp(std::max<int64_t>(1, at_once), kPanelRows);
}

bool IsPlainF32(DType dtype, const void* data) {
  return dtype == DType::kF32 && reinterpret_cast<uintptr_t>(data) % alignof(float) == 0;
}

// The rows of one stored weight from the first to the last, as f32.
class RowReader {
 public:
  RowReader(const RoleTensor& tensor, Orientation orientation, int64_t rows, int64_t depth)
      : tensor_(tensor),
        row_major_(orientation == Orientation::kOutIn),
        rows_(rows),
        depth_(depth),
        element_bytes_(static_cast<int64_t>(DTypeBytes(tensor.view.dtype))) {}

  // The next `count` rows, f32 [count, depth]; they last until the next call.
  absl::StatusOr<const float*> Next(int64_t count) {
    absl::StatusOr<const float*> rows =
        row_major_ ? NextStoredRows(count) : NextStoredColumns(count);
    next_ += count;
    return rows;
  }

 private:
  absl::StatusOr<const float*> NextStoredRows(int64_t count) {
    const int64_t offset = next_ * depth_ * element_bytes_;
    const char* stored = static_cast<const char*>(tensor_.view.data) + offset;
    if (tensor_.view.data == nullptr) {
      const int64_t bytes = count * depth_ * element_bytes_;
      stored_.resize(static_cast<size_t>(bytes));
      if (absl::Status read = tensor_.read(offset, absl::MakeSpan(stored_)); !read.ok()) {
        return read;
      }
      stored = stored_.data();
    }
    if (IsPlainF32(tensor_.view.dtype, stored)) return reinterpret_cast<const float*>(stored);
    rows_as_floats_.resize(static_cast<size_t>(count * depth_));
    absl::Status status = ConvertToFloat({tensor_.view.dtype, {count, depth_}, stored},
                                         tensor_.name, rows_as_floats_.data());
    if (!status.ok()) return status;
    return rows_as_floats_.data();
  }

  // A tensor stored in x out has a piece of each of our rows in every one of its own.
  absl::StatusOr<const float*> NextStoredColumns(int64_t count) {
    columns_.resize(static_cast<size_t>(count * depth_));
    stored_.resize(static_cast<size_t>(count * element_bytes_));
    TensorView piece{tensor_.view.dtype, {count}, stored_.data()};
    for (int64_t k = 0; k < depth_; ++k) {
      const int64_t offset = (k * rows_ + next_) * element_bytes_;
      if (tensor_.view.data != nullptr) {
        piece.data = static_cast<const char*>(tensor_.view.data) + offset;
      } else if (absl::Status read = tensor_.read(offset, absl::MakeSpan(stored_)); !read.ok()) {
        return read;
      }
      absl::Status status = ConvertToFloat(piece, tensor_.name, columns_.data() + k * count);
      if (!status.ok()) return status;
    }
    rows_as_floats_.resize(columns_.size());
    Transpose32(columns_.data(), count, depth_, count, rows_as_floats_.data(), depth_);
    return rows_as_floats_.data();
  }

  const RoleTensor& tensor_;
  const bool row_major_;
  const int64_t rows_, depth_, element_bytes_;
  int64_t next_ = 0;
  std::vector<char> stored_;
  std::vector<float> columns_, rows_as_floats_;
};

absl::Status TakeStored(const LayerSpec& spec, const StoredWeight& weight, const RoleTensor& tensor,
                        TakeRows take) {
  RowReader reader(tensor, spec.orientation, weight.rows, weight.depth);
  const int64_t at_once = RowsAtOnce(spec.orientation, weight.rows, weight.depth);
  for (const WeightStretch& stretch : weight.stretches) {
    for (int64_t done = 0; done < stretch.rows;) {
      const int64_t count = std::min(at_once, stretch.rows - done);
      const absl::StatusOr<const float*> rows = reader.Next(count);
      if (!rows.ok()) return rows.status();
      take(stretch.matrix, stretch.first + done, count, *rows);
      done += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UnpackRows(const LayerSpec& spec, const std::vector<RoleTensor>& tensors,
                        TakeRows take) {
  const auto find = [&](TensorRole role) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const RoleTensor& tensor) { return tensor.role == role; });
  };
  const bool q_apart = find(TensorRole::kKvWeight) != tensors.end();
  for (const StoredWeight& weight : ListStoredWeights(spec, q_apart)) {
    absl::Status status = TakeStored(spec, weight, *find(weight.weight), take);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace headwise
