// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bytes.h"
#include "tests/support/temp_dir.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kConfig[] =
    R"({"model_type":"llama","hidden_size":4,"num_attention_heads":2,"num_hidden_layers":2})";

std::string Name(int layer, absl::string_view projection) {
  return absl::StrCat("model.layers.", layer, ".self_attn.", projection, "_proj.weight");
}

std::vector<NamedShape> Layer(int layer) {
  std::vector<NamedShape> tensors;
  for (const char* projection : {"q", "k", "v", "o"}) {
    tensors.push_back({Name(layer, projection), {4, 4}});
  }
  return tensors;
}

// weight_map of `files`: each layer's tensors in the file of its place.
std::string Index(const std::vector<std::string>& files) {
  std::vector<std::string> entries;
  for (size_t layer = 0; layer < files.size(); ++layer) {
    for (const NamedShape& tensor : Layer(static_cast<int>(layer))) {
      entries.push_back(absl::StrCat("\"", tensor.name, "\":\"", files[layer], "\""));
    }
  }
  return absl::StrCat(R"({"metadata":{"total_size":1},"weight_map":{)", absl::StrJoin(entries, ","),
                      "}}");
}

// A repository whose folder "m" holds layer 0 in a.safetensors and layer 1 in b.safetensors.
class Repository {
 public:
  Repository() {
    Write("m/config.json", kConfig);
    Write("m/model.safetensors.index.json", Index({"a.safetensors", "b.safetensors"}));
    Write("m/a.safetensors", FloatSafetensors(Layer(0)));
    Write("m/b.safetensors", FloatSafetensors(Layer(1)));
  }
  void Write(absl::string_view name, absl::string_view bytes) {
    dir_.Write(absl::StrCat("root/", name), bytes);
  }
  void Link(absl::string_view target, absl::string_view name) {
    std::filesystem::remove(Path(name));
    dir_.Link(target, absl::StrCat("root/", name));
  }
  void Remove(absl::string_view name) { std::filesystem::remove(Path(name)); }
  std::string Path(absl::string_view name) const { return absl::StrCat(root(), "/", name); }
  std::string root() const { return dir_.Path("root"); }
  const TempDir& outside() const { return dir_; }

  absl::StatusOr<std::unique_ptr<Checkpoint>> Open(absl::string_view dir = "m") const {
    return Checkpoint::Open(root(), dir);
  }
  // Of opening, planning and reading one layer.
  absl::Status Load(absl::string_view layer, absl::string_view dir = "m") const {
    const auto checkpoint = Open(dir);
    if (!checkpoint.ok()) return checkpoint.status();
    const auto plan = PlanLayer((*checkpoint)->config_json(), layer, (*checkpoint)->tensors());
    if (!plan.ok()) return plan.status();
    for (const TensorUse& use : plan->tensors) {
      const absl::Status status = (*checkpoint)->Read(use.name).status();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  TempDir dir_;
};

void ExpectStatus(const absl::Status& status, absl::StatusCode code, absl::string_view text = "") {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
}

TEST(Folder, ShardedAndSingleFiles) {
  Repository repository;
  EXPECT_TRUE(repository.Load("0").ok()) << repository.Load("0");
  EXPECT_TRUE(repository.Load("1").ok());
  EXPECT_TRUE(repository.Load("1", "m/").ok());
  repository.Write("one/config.json", kConfig);
  repository.Write("one/model.safetensors", FloatSafetensors(Layer(0)));
  EXPECT_TRUE(repository.Load("0", "one").ok());
  ExpectStatus(repository.Load("1", "one"), absl::StatusCode::kNotFound,
               "looked for [PREFIX.]layers.1.self_attn.q_proj.weight");
  repository.Write("config.json", kConfig);
  repository.Write("model.safetensors", FloatSafetensors(Layer(1)));
  EXPECT_TRUE(repository.Load("1", ".").ok());
}

TEST(Folder, IndexWinsOverASingleFile) {
  Repository repository;
  repository.Write("m/model.safetensors", "not read at all");
  EXPECT_TRUE(repository.Load("0").ok());
}

TEST(Folder, MissingParts) {
  Repository repository;
  ExpectStatus(repository.Load("0", "none"), absl::StatusCode::kNotFound);
  repository.Write("empty/notes.txt", "");
  ExpectStatus(repository.Load("0", "empty"), absl::StatusCode::kNotFound, "config.json");
  repository.Write("empty/config.json", kConfig);
  ExpectStatus(repository.Load("0", "empty"), absl::StatusCode::kNotFound,
               "model.safetensors.index.json or model.safetensors");
  ExpectStatus(repository.Load("0", "m/config.json"), absl::StatusCode::kNotFound);
}

TEST(Folder, ReadsTheRightTensor) {
  const Repository repository;
  const auto checkpoint = repository.Open();
  ASSERT_TRUE(checkpoint.ok());
  const auto tensor = (*checkpoint)->Read(Name(1, "q"));
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(Elements<float>(*tensor)[3], 4.0f);
  ExpectStatus((*checkpoint)->Read("none").status(), absl::StatusCode::kNotFound, "none");
}

TEST(Folder, ShardChangedAfterItsHeaderWasRead) {
  Repository repository;
  const auto checkpoint = repository.Open();
  ASSERT_TRUE(checkpoint.ok());
  repository.Remove("m/b.safetensors");
  ExpectStatus((*checkpoint)->Read(Name(1, "q")).status(), absl::StatusCode::kDataLoss,
               "b.safetensors");
  repository.Write("m/new", FloatSafetensors(Layer(1)));
  std::filesystem::rename(repository.Path("m/new"), repository.Path("m/b.safetensors"));
  ExpectStatus((*checkpoint)->Read(Name(1, "q")).status(), absl::StatusCode::kDataLoss,
               "must not change");
  EXPECT_TRUE((*checkpoint)->Read(Name(0, "q")).ok());
}

TEST(Folder, LinksInsideTheRootAreFollowed) {
  Repository repository;
  repository.Write("blobs/1", FloatSafetensors(Layer(0)));
  repository.Link("../blobs/1", "m/a.safetensors");
  EXPECT_TRUE(repository.Load("0").ok()) << repository.Load("0");
  repository.Link(repository.Path("blobs/1"), "m/a.safetensors");
  EXPECT_TRUE(repository.Load("0").ok()) << repository.Load("0");
  repository.Link("m", "alias");
  EXPECT_TRUE(repository.Load("0", "alias").ok());
  repository.Link("./alias/../m", "other");
  EXPECT_TRUE(repository.Load("0", "other").ok());
}

TEST(Folder, RootMayBeALinkItself) {
  const Repository repository;
  repository.outside().Link("root", "link");
  const std::string root = repository.outside().Path("link");
  EXPECT_TRUE(Checkpoint::Open(root, "m").ok());
  EXPECT_FALSE(Checkpoint::Open(repository.outside().Path("none"), "m").ok());
}

TEST(Cases, L5_FolderNames) {
  Repository repository;
  repository.outside().Write("secret/config.json", kConfig);
  repository.outside().Write("secret/model.safetensors", FloatSafetensors(Layer(0)));
  for (const std::string& dir :
       {std::string("../secret"), std::string("m/../../secret"), repository.Path("m"),
        std::string(""), std::string("/"), std::string(".."), std::string("m//"),
        std::string("./m"), std::string("m/."), std::string("m\0", 2), std::string("m\0/../x", 7),
        std::string(5000, 'a')}) {
    ExpectStatus(repository.Load("0", dir), absl::StatusCode::kInvalidArgument, "checkpoint:");
  }
}

TEST(Cases, L5_FoldersThatAreLinksOut) {
  Repository repository;
  repository.outside().Write("secret/config.json", kConfig);
  repository.outside().Write("secret/model.safetensors", FloatSafetensors(Layer(0)));
  for (const std::string& target :
       {std::string("../secret"), repository.outside().Path("secret"),
        std::string("m/../../secret"), std::string("../none"), repository.outside().Path("none"),
        repository.root() + "-beside"}) {
    repository.Link(target, "out");
    // The same words whether there is something outside or not.
    ExpectStatus(repository.Load("0", "out"), absl::StatusCode::kInvalidArgument,
                 "checkpoint: out: must stay inside the repository; was a way out of it");
  }
}

TEST(Cases, L5_ShardNames) {
  Repository repository;
  repository.Write("other/a.safetensors", FloatSafetensors(Layer(0)));
  for (const char* file : {"../other/a.safetensors", "/etc/hostname", "sub/../../a.safetensors",
                           "sub/a.safetensors", "..", ".", "", "a\\u0000.safetensors"}) {
    repository.Write("m/model.safetensors.index.json", Index({file, "b.safetensors"}));
    const absl::Status status = repository.Load("0");
    ExpectStatus(status, absl::StatusCode::kDataLoss, "must name a file of the folder");
    EXPECT_THAT(std::string(status.message()), HasSubstr(Name(0, "k"))) << file;
  }
}

TEST(Cases, L5_FilesThatAreLinksOut) {
  for (const char* file : {"m/a.safetensors", "m/config.json", "m/model.safetensors.index.json"}) {
    Repository repository;
    repository.outside().Write("secret", FloatSafetensors(Layer(0)));
    for (const std::string& target :
         {std::string("../../secret"), repository.outside().Path("secret"),
          std::string("../../none"), std::string("/etc/hostname")}) {
      repository.Link(target, file);
      ExpectStatus(repository.Load("0"), absl::StatusCode::kDataLoss,
                   "must stay inside the repository; was a way out of it");
    }
  }
}

TEST(Cases, L5_LinkLoopsAndPipes) {
  Repository repository;
  repository.Link("b.safetensors", "m/a.safetensors");
  repository.Link("a.safetensors", "m/b.safetensors");
  ExpectStatus(repository.Load("0"), absl::StatusCode::kDataLoss);
  repository.Link("loop", "loop");
  ExpectStatus(repository.Load("0", "loop"), absl::StatusCode::kInvalidArgument);
  repository.Remove("m/a.safetensors");
  ASSERT_EQ(::mkfifo(repository.Path("m/a.safetensors").c_str(), 0600), 0);
  ExpectStatus(repository.Load("0"), absl::StatusCode::kDataLoss, "must be a regular file");
}

TEST(Cases, L6_MissingShard) {
  Repository repository;
  repository.Remove("m/b.safetensors");
  const absl::Status status = repository.Load("1");
  ExpectStatus(status, absl::StatusCode::kDataLoss, "b.safetensors");
  EXPECT_THAT(std::string(status.message()), HasSubstr(Name(1, "q")));
  EXPECT_TRUE(repository.Load("0").ok());
}

TEST(Cases, L6_ShardWithoutItsTensor) {
  Repository repository;
  std::vector<NamedShape> tensors = Layer(1);
  tensors.pop_back();
  repository.Write("m/b.safetensors", FloatSafetensors(tensors));
  const absl::Status status = repository.Load("1");
  ExpectStatus(status, absl::StatusCode::kDataLoss, "b.safetensors as the index says");
  EXPECT_THAT(std::string(status.message()), HasSubstr(Name(1, "o")));
  EXPECT_TRUE(repository.Load("0").ok());
}

TEST(Cases, L6_TensorThatIsNotInTheIndex) {
  Repository repository;
  std::string index = Index({"a.safetensors", "b.safetensors"});
  const std::string entry = absl::StrCat("\"", Name(1, "v"), "\":\"b.safetensors\",");
  index.erase(index.find(entry), entry.size());
  repository.Write("m/model.safetensors.index.json", index);
  const absl::Status status = repository.Load("1");
  ExpectStatus(status, absl::StatusCode::kDataLoss, "was only in m/b.safetensors");
  EXPECT_THAT(std::string(status.message()), HasSubstr(Name(1, "v")));
  EXPECT_TRUE(repository.Load("0").ok());
}

TEST(Cases, L6_MalformedShardFailsOnlyItsLayers) {
  Repository repository;
  repository.Write("m/b.safetensors", "1234567");
  ExpectStatus(repository.Load("1"), absl::StatusCode::kDataLoss, "b.safetensors");
  EXPECT_TRUE(repository.Load("0").ok());
}

TEST(Folder, MalformedIndexes) {
  Repository repository;
  for (const char* index :
       {"", "{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"x","a":"y"}})", R"({"weight_map":{"a":null}})"}) {
    repository.Write("m/model.safetensors.index.json", index);
    ExpectStatus(repository.Load("0"), absl::StatusCode::kDataLoss, "model.safetensors.index.json");
  }
}

TEST(ListRepository, SaysWhatCanBeLoadedAndWhyNot) {
  Repository repository;
  repository.Write("deep/a/b/config.json", kConfig);
  repository.Write("deep/a/b/model.safetensors", FloatSafetensors(Layer(1)));
  repository.Write("rwkv/config.json", R"({"model_type":"rwkv"})");
  repository.Write("rwkv/model.safetensors", FloatSafetensors(Layer(1)));
  repository.Write("broken/config.json", "{");
  repository.Write("broken/model.safetensors", FloatSafetensors(Layer(1)));
  repository.Write("no-weights/config.json", kConfig);
  repository.Write("no-config/model.safetensors", "");
  repository.Write("1/2/3/4/5/config.json", kConfig);
  repository.Write(".hidden/config.json", kConfig);
  repository.Link("m", "link");
  std::vector<std::string> lines;
  for (const CheckpointSummary& summary : ListRepository(repository.root())) {
    lines.push_back(absl::StrCat(summary.dir, " ", summary.family, " ", summary.supported, " ",
                                 absl::StrJoin(summary.layers, ",")));
    EXPECT_EQ(summary.reason.empty(), summary.supported);
    EXPECT_THAT(summary.reason, Not(HasSubstr(repository.root())));
  }
  EXPECT_THAT(lines, ElementsAre("broken  0 ", "deep/a/b llama 1 1", "m llama 1 0,1",
                                 "no-weights llama 0 ", "rwkv rwkv 0 "));
  EXPECT_TRUE(ListRepository(repository.Path("none")).empty());
}

}  // namespace
}  // namespace headwise
