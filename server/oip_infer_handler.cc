// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/time/clock.h"
#include "server/codec_oip.h"
#include "server/oip_service.h"

namespace headwise {

grpc::ServerUnaryReactor* OipService::ModelInfer(grpc::CallbackServerContext* context,
                                                 const inference::ModelInferRequest* request,
                                                 inference::ModelInferResponse* response) {
  auto* call = new UnaryCall(services_, context, "ModelInfer", request->model_name());
  const auto accept = [&]() -> absl::StatusOr<ForwardRequest> {
    absl::Status status = call->Admit();
    status.Update(call->ChooseRequestId(""));
    if (status.ok()) status = Find(request->model_name(), request->model_version()).status();
    if (status.ok()) status = call->Hold(static_cast<int64_t>(request->ByteSizeLong()));
    if (!status.ok()) return status;
    absl::StatusOr<ForwardRequest> decoded = DecodeInfer(*request);
    if (decoded.ok()) decoded->context = call->request_context();
    return decoded;
  };
  const auto end = [this, call, request](const absl::Status& status) {
    if (!status.ok() && services_.engine->GetLayer(request->model_name()).ok()) {
      statistics_.RecordFailure(request->model_name(), absl::Now() - call->arrived());
    }
    call->Reply(status);
  };
  absl::StatusOr<ForwardRequest> accepted = accept();
  if (!accepted.ok()) {
    end(accepted.status());
    return call;
  }
  services_.engine->Forward(*std::move(accepted), [this, call, request, response,
                                                   end](absl::StatusOr<ForwardResult> result) {
    if (result.ok()) {
      const PassInfo pass = result->pass;
      const absl::Time begin = absl::Now();
      EncodeInfer(*std::move(result), *request, response);
      const absl::Time now = absl::Now();
      call->SetAnswer(pass, now - begin, static_cast<int64_t>(response->ByteSizeLong()));
      statistics_.RecordSuccess(pass, now - call->arrived(), now - begin);
    }
    end(result.status());
  });
  return call;
}

}  // namespace headwise
