package dev.phalanx.spark.support

import java.net.URI
import java.net.http.{HttpClient, HttpRequest, HttpResponse}

/** What the driver's web server answers. */
object SparkUi {
  private lazy val client = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.ALWAYS).build()

  def get(path: String): String = {
    val address = URI.create(Cluster.sc.uiWebUrl.get + path)
    client.send(HttpRequest.newBuilder(address).build(), HttpResponse.BodyHandlers.ofString()).body
  }
}
