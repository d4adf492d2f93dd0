// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_SIGNALS_H_
#define HEADWISE_SERVER_SIGNALS_H_

#include <atomic>
#include <functional>
#include <thread>

namespace headwise {

// Blocks SIGTERM and SIGINT for this thread and those that it will make. Call it before the first.
void BlockStopSignals();

// Calls `on_signal` with 1 at the first stop signal, 2 at the second, and so on, on a thread of its
// own, where anything may be done that a signal handler may not.
class SignalThread {
 public:
  explicit SignalThread(std::function<void(int count)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Run();

  const std::function<void(int)> on_signal_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SIGNALS_H_
