// SPDX-License-Identifier: Apache-2.0
#include "client/html_weights.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/html_page.h"
#include "client/status.h"
#include "client/tensors.h"

namespace headwise::client {
namespace {

constexpr int64_t kMostCells = 48;  // along an axis

// Means of blocks of a map [rows, columns], `block` tokens along each axis.
struct Blocks {
  int64_t rows = 0, columns = 0;
  std::vector<double> means;
};

Blocks Shrink(const float* p, int64_t rows, int64_t columns, int64_t block) {
  Blocks blocks{(rows + block - 1) / block, (columns + block - 1) / block, {}};
  for (int64_t i = 0; i < blocks.rows; ++i) {
    for (int64_t j = 0; j < blocks.columns; ++j) {
      double sum = 0, count = 0;
      for (int64_t t = i * block; t < std::min(rows, (i + 1) * block); ++t) {
        for (int64_t s = j * block; s < std::min(columns, (j + 1) * block); ++s) {
          sum += static_cast<double>(p[t * columns + s]);
          count += 1;
        }
      }
      blocks.means.push_back(sum / count);
    }
  }
  return blocks;
}

// One path a level of strength: a rectangle for each cell would be ten times the bytes.
std::string Cells(const Blocks& blocks, double largest) {
  constexpr int kLevels = 16;
  std::vector<std::string> paths(kLevels + 1);
  for (int64_t i = 0; i < blocks.rows; ++i) {
    for (int64_t j = 0; j < blocks.columns; ++j) {
      const double share =
          largest > 0 ? blocks.means[static_cast<size_t>(i * blocks.columns + j)] / largest : 0;
      if (!std::isfinite(share)) continue;
      const int level = static_cast<int>(std::lround(kLevels * std::clamp(share, 0.0, 1.0)));
      absl::StrAppend(&paths[static_cast<size_t>(level)], "M", j, " ", i, "h1v1h-1z");
    }
  }
  std::string svg;
  for (int level = 1; level <= kLevels; ++level) {
    const std::string& path = paths[static_cast<size_t>(level)];
    if (path.empty()) continue;
    absl::StrAppendFormat(&svg, "<path class=\"bar\" fill-opacity=\"%.3g\" d=\"%s\"/>",
                          static_cast<double>(level) / kLevels, path);
  }
  return svg;
}

std::string HeadMap(const WeightMaps& weights, size_t head, int64_t block) {
  constexpr double kLeft = 26, kTop = 20, kSide = 120;
  const float* p = weights.p.data() + head * static_cast<size_t>(weights.queries * weights.keys);
  const Blocks blocks = Shrink(p, weights.queries, weights.keys, block);
  double largest = 0;
  for (const double mean : blocks.means) {
    if (std::isfinite(mean)) largest = std::max(largest, mean);
  }
  const double cell = kSide / static_cast<double>(std::max(blocks.rows, blocks.columns));
  const double width = cell * static_cast<double>(blocks.columns);
  const double height = cell * static_cast<double>(blocks.rows);
  const auto place = [](double value) { return absl::StrFormat("%.1f", value); };
  std::string svg = SvgText("0", 13, "start",
                            absl::StrFormat("head %d, max %.2f", weights.head_ids[head], largest));
  absl::StrAppendFormat(&svg, "<g transform=\"translate(%.1f %.1f) scale(%.4f)\">%s</g>", kLeft,
                        kTop, cell, Cells(blocks, largest));
  absl::StrAppendFormat(
      &svg,
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" class=\"axis\"/>",
      kLeft, kTop, width, height);
  const double bottom = kTop + height + 14;
  absl::StrAppend(&svg, SvgText(place(kLeft - 4), kTop + 10, "end", "0"),
                  SvgText(place(kLeft), bottom, "start", "0"));
  if (weights.queries > 1 && height > 24) {
    absl::StrAppend(
        &svg, SvgText(place(kLeft - 4), kTop + height, "end", absl::StrCat(weights.queries - 1)));
  }
  if (weights.keys > 1 && width > 40) {
    absl::StrAppend(&svg,
                    SvgText(place(kLeft + width), bottom, "end", absl::StrCat(weights.keys - 1)));
  }
  return absl::StrFormat(
      "<svg width=\"150\" height=\"%.0f\" role=\"img\" aria-label=\"weights of head %d\">%s</svg>",
      bottom + 6, weights.head_ids[head], svg);
}

// The first sequence with tokens, as an input of its own where nothing else belongs to it.
v1::AttentionInput FirstSequence(const v1::AttentionInput& input, int64_t* sequence) {
  *sequence = 0;
  if (input.has_memory() || input.has_mask() || input.has_positions() ||
      input.x().shape_size() != 2 || input.lengths_size() < 2) {
    return input;
  }
  int64_t row = 0;
  int s = 0;
  while (s + 1 < input.lengths_size() && input.lengths(s) == 0) ++s;
  for (int before = 0; before < s; ++before) row += input.lengths(before);
  int64_t rows = input.x().shape(0);
  if (rows == 0 || row + input.lengths(s) > rows) return input;
  const size_t row_bytes = input.x().data().size() / static_cast<size_t>(rows);
  v1::AttentionInput one = input;
  one.clear_lengths();
  one.mutable_x()->set_shape(0, input.lengths(s));
  one.mutable_x()->set_data(
      input.x().data().substr(static_cast<size_t>(row) * row_bytes, input.lengths(s) * row_bytes));
  *sequence = s;
  return one;
}

}  // namespace

absl::StatusOr<WeightMaps> FirstWeights(const v1::ForwardResponse& response) {
  WeightMaps maps;
  for (const v1::NamedTensor& tensor : response.tensors()) {
    int64_t sequence = 0;
    if (!absl::StartsWith(tensor.name(), "p.") || tensor.shape_size() != 3 ||
        !absl::SimpleAtoi(tensor.name().substr(2), &sequence)) {
      continue;
    }
    if (tensor.shape(1) == 0 || tensor.shape(2) == 0) continue;
    CLIENT_ASSIGN_OR_RETURN(const TensorView view, ViewOf(tensor));
    CLIENT_ASSIGN_OR_RETURN(maps.p, ToFloats(view, tensor.name()));
    maps.sequence = sequence;
    maps.queries = tensor.shape(1);
    maps.keys = tensor.shape(2);
    maps.head_ids.assign(tensor.head_ids().begin(), tensor.head_ids().end());
    if (maps.head_ids.size() == tensor.shape(0)) return maps;
    return absl::InternalError("answer: p must name a head for each of its maps; was without");
  }
  maps.absent = "No sequence has tokens and keys: there are no weights to show.";
  return maps;
}

WeightMaps AskForWeights(Client* client, const std::string& layer,
                         const v1::AttentionInput& input) {
  v1::ForwardRequest request;
  request.set_layer(layer);
  request.add_outputs(v1::P);
  int64_t sequence = 0;
  *request.mutable_input() = FirstSequence(input, &sequence);
  absl::Status status;
  if (const auto response = client->Forward(request); !response.ok()) {
    status = response.status();
  } else if (auto maps = FirstWeights(*response); maps.ok()) {
    maps->sequence += sequence;
    return *std::move(maps);
  } else {
    status = maps.status();
  }
  WeightMaps none;
  none.absent = absl::StrCat("The weights aren't shown: ", status.message(), ".");
  return none;
}

std::string WeightsFigure(const WeightMaps& weights) {
  if (!weights.absent.empty()) return Figure("weights", "", weights.absent);
  const int64_t longest = std::max(weights.queries, weights.keys);
  const int64_t block = (longest + kMostCells - 1) / kMostCells;
  std::string maps = "<div class=\"maps\">";
  for (size_t head = 0; head < weights.head_ids.size(); ++head) {
    absl::StrAppend(&maps, HeadMap(weights, head, block));
  }
  return Figure(
      "weights", absl::StrCat(maps, "</div>"),
      absl::StrCat(
          "Attention weights p of sequence ", weights.sequence, ": query tokens downwards 0 to ",
          weights.queries - 1, ", key tokens to the right 0 to ", weights.keys - 1,
          "; darkest: the head's largest weight (max)",
          block > 1 ? absl::StrCat("; a cell is the mean of ", block, " x ", block, " tokens") : "",
          "."));
}

}  // namespace headwise::client
