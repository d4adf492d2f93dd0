// SPDX-License-Identifier: Apache-2.0
// The file of a saved layer, from its bytes to the resolved spec and the tensors to upload.
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "client/upload.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/spec_check.h"

namespace headwise {
namespace {

// What `load --layer-file` does with the file before it sends anything.
void ReadLayerFile(const std::string& path) {
  const auto file = client::WeightsFile::Open(path);
  if (!file.ok()) return CheckRefusal(file.status());
  v1::UploadHeader header;
  absl::Status status = client::DescribeSavedLayer(**file, path, &header);
  if (!status.ok()) return CheckRefusal(status);
  const auto spec = CheckWireSpec(header.spec());
  const std::vector<std::string> names = client::SpecTensorNames(header.spec().tensors());
  status = client::DescribeTensors(**file, names, &header);
  if (!status.ok()) return CheckRefusal(status);
  for (const std::string& name : names) {
    const auto tensor = (*file)->Read(name);
    CHECK(tensor.ok()) << tensor.status();
  }
  PlantFault(spec.ok() && spec->mask.window.has_value() && *spec->mask.window > 4);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A file in memory, reached by a name as any other.
  static const int fd = memfd_create("layer", 0);
  CHECK_EQ(ftruncate(fd, 0), 0);
  CHECK_EQ(pwrite(fd, data, size, 0), static_cast<ssize_t>(size));
  headwise::ReadLayerFile(absl::StrCat("/proc/self/fd/", fd));
  return 0;
}
