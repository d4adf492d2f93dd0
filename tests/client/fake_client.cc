// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_client.h"

#include <sstream>

#include "client/status.h"

namespace headwise::client {
namespace {

class FakeClient : public Client {
 public:
  explicit FakeClient(Script* script) : script_(script) {}

  absl::StatusOr<v1::ForwardResponse> Forward(const v1::ForwardRequest& request) override {
    script_->forward_request = request;
    return Answer(script_->forward);
  }
  std::unique_ptr<ForwardStream> OpenForwardStream() override { return nullptr; }
  absl::StatusOr<v1::AblateResult> Ablate(const v1::AblateRequest& request,
                                          const ProgressCallback&) override {
    script_->ablate_request = request;
    return Answer(script_->ablate);
  }
  absl::StatusOr<v1::AnalyzeHeadsResult> AnalyzeHeads(const v1::AnalyzeHeadsRequest& request,
                                                      const ProgressCallback&) override {
    script_->analyze_request = request;
    return Answer(script_->analysis);
  }
  absl::StatusOr<v1::AuditResult> Audit(const v1::AuditRequest& request,
                                        const ProgressCallback&) override {
    script_->audit_request = request;
    return Answer(script_->audit);
  }
  absl::StatusOr<v1::LoadLayerResponse> LoadLayer(const v1::LoadLayerRequest& request) override {
    script_->load_request = request;
    return Answer(script_->load);
  }
  absl::StatusOr<v1::PlanUploadResponse> PlanUpload(const v1::PlanUploadRequest& request) override {
    script_->plan_request = request;
    return Answer(script_->plan);
  }
  absl::StatusOr<v1::LoadLayerResponse> Upload(const v1::UploadHeader& header,
                                               const TensorSource& source,
                                               const ProgressCallback&) override {
    script_->upload_header = header;
    for (const v1::StoredTensor& tensor : header.tensors()) {
      CLIENT_ASSIGN_OR_RETURN(script_->uploaded[tensor.name()], source.Read(tensor.name()));
    }
    return Answer(script_->load);
  }
  absl::StatusOr<v1::UnloadLayerResponse> UnloadLayer(const std::string& name) override {
    script_->unloaded = name;
    return Answer(script_->unload);
  }
  absl::StatusOr<v1::ListLayersResponse> ListLayers() override { return Answer(script_->list); }
  absl::StatusOr<v1::LayerDetails> GetLayer(const v1::GetLayerRequest& request) override {
    script_->get_request = request;
    return Answer(script_->details);
  }
  absl::StatusOr<v1::LoadLayerResponse> DeriveLayer(
      const v1::DeriveLayerRequest& request) override {
    script_->derive_request = request;
    return Answer(script_->load);
  }
  absl::StatusOr<v1::SaveLayerResponse> SaveLayer(const v1::SaveLayerRequest& request) override {
    script_->save_request = request;
    return Answer(script_->save);
  }
  absl::Status DownloadLayer(
      const std::string& name,
      const std::function<absl::Status(const v1::DownloadLayerResponse&)>& take) override {
    script_->downloaded = name;
    for (const v1::DownloadLayerResponse& part : script_->download) {
      CLIENT_RETURN_IF_ERROR(take(part));
    }
    return Answer(0).status();
  }
  absl::StatusOr<v1::ListRepositoryResponse> ListRepository() override {
    return Answer(script_->repository);
  }
  absl::StatusOr<v1::ServerInfoResponse> ServerInfo() override { return Answer(script_->info); }
  absl::StatusOr<std::string> Health(const std::string& service) override {
    script_->health_asked = service;
    return Answer(script_->health);
  }

 private:
  template <typename T>
  absl::StatusOr<T> Answer(const T& answer) {
    ++script_->calls;
    if (!script_->failure.ok()) return script_->failure;
    return answer;
  }

  Script* const script_;
};

}  // namespace

v1::LayerDetails TwoHeadDetails(uint32_t dv) {
  v1::LayerDetails details;
  v1::LayerSpec* spec = details.mutable_spec();
  spec->set_d_model(4);
  spec->set_heads(2);
  spec->set_kv_heads(2);
  spec->add_dk(2);
  spec->add_dv(dv);
  return details;
}

Outcome RunWith(Script* script, const std::vector<std::string>& words, const Terminal& terminal,
                const std::optional<std::string>& input) {
  Environment environment;
  std::istringstream in(input.value_or(""));
  if (input.has_value()) environment.in = &in;
  environment.terminal = terminal;
  environment.connect =
      [script](const std::string& target,
               const ClientOptions& options) -> absl::StatusOr<std::unique_ptr<Client>> {
    script->target = target;
    script->timeout = options.timeout;
    script->client_id = options.client_id;
    return std::make_unique<FakeClient>(script);
  };
  std::ostringstream out, err;
  Outcome outcome;
  outcome.exit_code = RunHeadwise(words, environment, out, err);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

}  // namespace headwise::client
