// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "tests/support/bytes.h"
#include "tests/support/stored_layer.h"

namespace headwise {
namespace {

using nlohmann::json;

std::vector<std::string> Folders() {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(TestDataPath("golden"))) {
    if (entry.is_directory()) folders.push_back(entry.path().filename().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// The tensor of this layer, or the one that all layers of the case share.
std::string LengthsName(const SafetensorsFile& file, const std::string& key) {
  const std::string own = key + ".lengths";
  return file.Find(own) != nullptr ? own : "lengths";
}

}  // namespace

void PrintTo(const GoldenLayer& layer, std::ostream* out) { *out << GoldenName(layer); }

std::vector<GoldenLayer> GoldenLayers() {
  std::vector<GoldenLayer> layers;
  for (const std::string& folder : Folders()) {
    const std::string path = TestDataPath(absl::StrCat("golden/", folder));
    std::ifstream file(path + "/case.json");
    CHECK(file.good()) << path;
    const json described = json::parse(file);
    for (const char* config : {"config.json", "config.old.json"}) {
      if (!std::filesystem::exists(absl::StrCat(path, "/", config))) continue;
      for (const json& layer : described.at("layers")) {
        const std::string part =
            layer.at("stack").is_null() ? "" : layer.at("stack").get<std::string>() + ".";
        layers.push_back({folder, config, absl::StrCat(part, layer.at("layer").get<int64_t>()),
                          layer.at("key").get<std::string>(), layer});
      }
    }
  }
  return layers;
}

std::string GoldenName(const GoldenLayer& layer) {
  std::string name =
      absl::StrCat(layer.folder, "_", layer.key, layer.config_file == "config.json" ? "" : "_old");
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

GoldenTensors ReadGolden(const GoldenLayer& layer) {
  const auto file = OpenSafetensors(absl::StrCat("golden/", layer.folder, "/expected.safetensors"));
  GoldenTensors tensors;
  tensors.x = ReadFloats(*file, layer.key + ".x");
  tensors.lengths = ReadIntegers(*file, LengthsName(*file, layer.key));
  if (file->Find(layer.key + ".memory") != nullptr) {
    tensors.memory = ReadFloats(*file, layer.key + ".memory");
    tensors.memory_lengths = ReadIntegers(*file, layer.key + ".memory_lengths");
  }
  if (file->Find("positions") != nullptr) tensors.positions = ReadIntegers(*file, "positions");
  for (size_t b = 0; b < tensors.lengths.size(); ++b) {
    tensors.p.push_back(ReadDoubles(*file, absl::StrCat(layer.key, ".p.", b)));
  }
  tensors.z = ReadDoubles(*file, layer.key + ".z");
  tensors.y = ReadDoubles(*file, layer.key + ".y");
  return tensors;
}

}  // namespace headwise
