package dev.phalanx.spark.ui;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import org.apache.spark.SecurityManager;
import org.apache.spark.SparkConf;
import org.apache.spark.status.AppStatusStore;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUI$;
import org.apache.spark.util.kvstore.InMemoryStore;
import scala.Option;

/** A web server of Spark's UI with the tab, under settings of its own and without an application. */
public final class ServedTab implements AutoCloseable {
  private final HttpClient client = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NEVER).build();
  private final SparkUI ui;
  final RunStore store;

  ServedTab(Map<String, String> settings, StacksQuestions questions) {
    SparkConf conf = new SparkConf(false).set("spark.ui.port", "0").set("spark.ui.filters", AsUser.class.getName());
    settings.forEach(conf::set);
    SecurityManager security =
        new SecurityManager(conf, Option.empty(), SecurityManager.$lessinit$greater$default$3());
    AppStatusStore status = new AppStatusStore(new InMemoryStore(), Option.empty(), Option.empty());
    ui = SparkUI$.MODULE$.create(Option.empty(), status, conf, security, "tab", "", 0L, "");
    store = new RunStore(status.store());
    if (!PhalanxTab.attached(ui, store, questions)) {
      throw new IllegalStateException("the tab can't be attached");
    }
    ui.bind();
    ui.attachAllHandlers();
  }

  /** What the server answers to a user who asks for a page, or sends a form: status, place and text. */
  HttpResponse<String> ask(String user, String path, String form) throws IOException, InterruptedException {
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + ui.boundPort() + path)).header("X-User", user);
    if (form != null) {
      request.header("Content-Type", "application/x-www-form-urlencoded");
      request.POST(HttpRequest.BodyPublishers.ofString(form));
    }
    return client.send(request.build(), HttpResponse.BodyHandlers.ofString());
  }

  @Override
  public void close() {
    ui.stop();
  }

  /** A filter that takes whoever says so for a user. */
  public static final class AsUser implements Filter {
    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
        throws IOException, ServletException {
      HttpServletRequest asked = (HttpServletRequest) request;
      chain.doFilter(
          new HttpServletRequestWrapper(asked) {
            @Override
            public String getRemoteUser() {
              return asked.getHeader("X-User");
            }
          },
          response);
    }
  }
}
