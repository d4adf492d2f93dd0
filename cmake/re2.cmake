# SPDX-License-Identifier: Apache-2.0
# gRPC's own search for re2 walks Abseil's pkg-config files for 24 s; the answer is known.
if(NOT TARGET re2::re2)
  find_library(HEADWISE_RE2 re2 REQUIRED)
  add_library(re2::re2 INTERFACE IMPORTED)
  target_link_libraries(re2::re2 INTERFACE "${HEADWISE_RE2}")
  set(re2_FOUND TRUE)
endif()
