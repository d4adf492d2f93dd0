// SPDX-License-Identifier: Apache-2.0

// Decodes manifests from standard input strictly against the Kubernetes API types: an unknown or
// doubled field, a wrong type or an unknown kind is an error. Prints KIND/NAME of each.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// servingRuntime is KServe's serving.kserve.io/v1alpha1 ServingRuntime, as far as ours goes. The
// containers are Kubernetes' own type.
type servingRuntime struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Annotations           map[string]string `json:"annotations,omitempty"`
		SupportedModelFormats []struct {
			Name       string  `json:"name"`
			Version    *string `json:"version,omitempty"`
			AutoSelect *bool   `json:"autoSelect,omitempty"`
			Priority   *int32  `json:"priority,omitempty"`
		} `json:"supportedModelFormats"`
		ProtocolVersions []string           `json:"protocolVersions"`
		MultiModel       *bool              `json:"multiModel,omitempty"`
		Containers       []corev1.Container `json:"containers"`
		Volumes          []corev1.Volume    `json:"volumes,omitempty"`
	} `json:"spec"`
}

func decodeRuntime(document []byte) (string, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var value servingRuntime
	if err := decoder.Decode(&value); err != nil {
		return "", err
	}
	if len(value.Spec.Containers) == 0 || value.Spec.Containers[0].Name != "kserve-container" {
		return "", errors.New("the first container must be kserve-container")
	}
	return "ServingRuntime/" + value.Name, nil
}

func decode(document []byte, decoder runtime.Decoder) (string, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return "", err
	}
	if kind.APIVersion == "serving.kserve.io/v1alpha1" && kind.Kind == "ServingRuntime" {
		return decodeRuntime(document)
	}
	object, _, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return "", err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	return kind.Kind + "/" + accessor.GetName(), nil
}

func main() {
	decoder := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		kjson.SerializerOptions{Yaml: true, Strict: true})
	reader := kyaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for count := 0; ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			if count == 0 {
				fmt.Fprintln(os.Stderr, "no manifest")
				os.Exit(1)
			}
			return
		}
		if err == nil && len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		name := ""
		if err == nil {
			name, err = decode(document, decoder)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%v\nin:\n%s\n", err, document)
			os.Exit(1)
		}
		count++
		fmt.Println(name)
	}
}
