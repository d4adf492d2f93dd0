// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/config.h"
#include "core/checkpoint/root_folder.h"

namespace headwise {
namespace {

constexpr int kMaxDepth = 4;
constexpr size_t kMaxFolders = 10000;

// The folders under the root, itself (".") first, parents before children.
std::vector<std::string> FindFolders(const RootFolder& root) {
  std::vector<std::string> found = {"."};
  std::deque<std::pair<std::string, int>> open = {{".", 0}};
  while (!open.empty() && found.size() < kMaxFolders) {
    const auto [folder, depth] = std::move(open.front());
    open.pop_front();
    const absl::StatusOr<std::vector<std::string>> names = root.ListFolders(folder);
    if (!names.ok()) continue;  // gone meanwhile, or not ours to read
    for (const std::string& name : *names) {
      const std::string path = folder == "." ? name : absl::StrCat(folder, "/", name);
      if (found.size() < kMaxFolders) found.push_back(path);
      if (depth + 1 < kMaxDepth) open.emplace_back(path, depth + 1);
    }
  }
  return found;
}

// model_type, or nothing if config.json is unreadable.
std::string ReadModelType(const RootFolder& root, const std::string& dir) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  const std::string path = absl::StrCat(dir, "/config.json");
  const absl::StatusOr<UniqueFd> fd = root.OpenFile(path);
  if (!fd.ok()) return "";
  const absl::StatusOr<std::string> text = ReadAll(*fd, path, kMaxBytes);
  if (!text.ok()) return "";
  const absl::StatusOr<nlohmann::json> config = ParseConfigJson(*text);
  if (!config.ok()) return "";
  constexpr absl::string_view kKey[] = {"model_type"};
  return ConfigObject(*config, "").String(kKey, "").value_or("");
}

CheckpointSummary Summarise(absl::string_view root_path, const RootFolder& root,
                            const std::string& dir) {
  CheckpointSummary summary;
  summary.dir = dir;
  summary.family = ReadModelType(root, dir);
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(root_path, dir);
  absl::Status status = checkpoint.status();
  if (checkpoint.ok()) {
    absl::StatusOr<std::vector<std::string>> layers =
        ListLayerIds((*checkpoint)->config_json(), (*checkpoint)->tensors());
    status = layers.status();
    if (layers.ok()) summary.layers = *std::move(layers);
  }
  summary.supported = status.ok();
  summary.reason = std::string(status.message());
  return summary;
}

}  // namespace

std::vector<CheckpointSummary> ListRepository(const std::string& root) {
  std::vector<CheckpointSummary> summaries;
  const absl::StatusOr<std::unique_ptr<RootFolder>> folder = RootFolder::Open(root);
  if (!folder.ok()) return summaries;
  for (const std::string& dir : FindFolders(**folder)) {
    if (absl::IsNotFound((*folder)->OpenFile(absl::StrCat(dir, "/config.json")).status())) continue;
    summaries.push_back(Summarise(root, **folder, dir));
  }
  std::sort(summaries.begin(), summaries.end(),
            [](const CheckpointSummary& a, const CheckpointSummary& b) { return a.dir < b.dir; });
  return summaries;
}

}  // namespace headwise
