// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CLIENT_FORWARD_STREAM_H_
#define HEADWISE_CLIENT_FORWARD_STREAM_H_

#include <optional>

#include "absl/status/status.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

// Forward requests on one call, pipelined: send several before the first answer. Answers come in
// any order and carry their request's id; one with a `status_code` other than 0 says that this
// request was refused, and the stream goes on. One thread may send while another receives.
// Receive, or the server stops taking requests. Destroying it cancels what is unanswered.
class ForwardStream {
 public:
  virtual ~ForwardStream() = default;

  // Blocks while the server takes no more. False: the stream has ended, Finish says why.
  virtual bool Send(const v1::ForwardRequest& request) = 0;
  // No more requests; the answers under way still come.
  virtual void CloseSending() = 0;
  // The next answer; nullopt: no more will come.
  virtual std::optional<v1::ForwardStreamResponse> Receive() = 0;
  // After Receive gave nullopt: how the stream ended.
  virtual absl::Status Finish() = 0;
};

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_FORWARD_STREAM_H_
