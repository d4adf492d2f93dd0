// SPDX-License-Identifier: Apache-2.0
// Gives a fuzz target every file of the folders named on the command line: what compilers without
// libFuzzer run.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_dir.h"

int main(int argc, char** argv) {
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const std::string bytes = headwise::ReadBytes(file);
    std::printf("%s\n", file.c_str());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  return files.empty() ? 1 : 0;
}
